//! Exchange of rows between partitions: routes and their order.
//!
//! Each process packs, for each process, the rows that its partitions send to the partitions there:
//! by sender, then by receiver. Rows between partitions of one process go the same way, so that
//! they are narrowed alike, and results depend on the partitions alone.

use std::sync::Arc;

use super::{
    compress::{NarrowingLoss, RowCode},
    part::Part,
};

/// Processes of partitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) n_workers: u32,
    pub(crate) n_ranks: u32,
    pub(crate) rank: u32,
}

/// Rows from one partition to another, one or both of which are here.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Position of the sender, or receiver, among the partitions of this process.
    at: usize,
    /// Its rows: own rows, or a range of its halo.
    rows: Arc<[u32]>,
}

/// All routes of this process in one direction: rows to halos, or gradients to owners.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    placement: Placement,
    way: Way,
    /// By rank, in the order of rows in a message.
    outgoing: Vec<Vec<Route>>,
    incoming: Vec<Vec<Route>>,
}

/// Direction of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From owners to halos.
    Forward,
    /// Gradients, from halos to owners.
    Back,
}

/// Messages of one exchange, by rank. Their memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) outgoing: Vec<Vec<u8>>,
    pub(crate) incoming: Vec<Vec<u8>>,
}

/// Bytes of rows that a partition sent to other workers in one exchange, and the loss of
/// narrowing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) loss: NarrowingLoss,
}

impl Placement {
    /// Returns the worker of a partition.
    pub(crate) fn worker_of(self, part: u32) -> u32 {
        part % self.n_workers
    }

    fn rank_of(self, part: u32) -> u32 {
        self.worker_of(part) % self.n_ranks
    }
}

impl Routes {
    /// Lists the routes of `parts`, those of this process in rising order, by way.
    pub(crate) fn both(parts: &[Part], placement: Placement) -> [Self; 2] {
        let [mut forward, mut back] = [Way::Forward, Way::Back].map(|way| {
            let none = vec![Vec::new(); placement.n_ranks as usize];
            Self { placement, way, outgoing: none.clone(), incoming: none }
        });
        for (at, part) in parts.iter().enumerate() {
            let route =
                |from, to, rows: &Arc<[u32]>| Route { from, to, at, rows: Arc::clone(rows) };
            let here = part.graph.part;
            for (other, rows) in &part.graph.sends {
                let rank = placement.rank_of(*other) as usize;
                forward.outgoing[rank].push(route(here, *other, rows));
                back.incoming[rank].push(route(*other, here, rows));
            }
            for (other, range) in &part.graph.receives {
                let rank = placement.rank_of(*other) as usize;
                let rows = (range.start as u32..range.end as u32).collect();
                forward.incoming[rank].push(route(*other, here, &rows));
                back.outgoing[rank].push(route(here, *other, &rows));
            }
        }
        for routes in [&mut forward, &mut back] {
            let all = routes.outgoing.iter_mut().chain(&mut routes.incoming);
            all.for_each(|routes| routes.sort_by_key(|route| (route.from, route.to)));
        }
        [forward, back]
    }

    /// Returns the bytes received from each rank, of rows of `row_bytes`.
    pub(crate) fn incoming_bytes(&self, row_bytes: usize) -> Vec<usize> {
        let bytes =
            |routes: &Vec<Route>| routes.iter().map(|of| of.rows.len() * row_bytes).sum::<usize>();
        self.incoming.iter().map(bytes).collect()
    }

    /// Packs the rows of width `width` that `parts` send; returns the figures of each part.
    pub(crate) fn pack(
        &self,
        parts: &mut [Part],
        code: RowCode,
        width: usize,
        messages: &mut Messages,
    ) -> Vec<Sent> {
        let row_bytes = code.row_bytes(width);
        messages.outgoing.resize_with(self.outgoing.len(), Vec::new);
        let mut sent = vec![Sent::default(); parts.len()];
        let mut losses = Vec::new();
        for (routes, message) in self.outgoing.iter().zip(&mut messages.outgoing) {
            let n_rows: usize = routes.iter().map(|route| route.rows.len()).sum();
            message.resize(n_rows * row_bytes, 0);
            let mut rest = &mut message[..];
            for route in routes {
                let (out, others) = rest.split_at_mut(route.rows.len() * row_bytes);
                rest = others;
                let pass = &parts[route.at].pass;
                let x = if self.way == Way::Forward { &pass.own } else { &pass.halo };
                losses.push((route, code.encode(x, width, &route.rows, out)));
                if self.placement.worker_of(route.from) != self.placement.worker_of(route.to) {
                    sent[route.at].bytes += out.len() as u64;
                }
            }
        }
        // In the order of partitions, wherever these are.
        losses.sort_by_key(|(route, _)| (route.from, route.to));
        losses.into_iter().for_each(|(route, loss)| sent[route.at].loss.add(loss));
        sent
    }

    /// Copies received rows into the halos of `parts`.
    pub(crate) fn unpack(
        &self,
        parts: &mut [Part],
        code: RowCode,
        width: usize,
        messages: &Messages,
    ) {
        for (route, bytes) in self.arrived(code.row_bytes(width), messages) {
            let first = route.rows.first().map_or(0, |&row| row as usize * width);
            let halo = &mut parts[route.at].pass.halo[first..];
            code.decode(bytes, width, &mut halo[..route.rows.len() * width]);
        }
    }

    /// Adds received gradients to those of own rows of `parts`, for each row in the order of
    /// sending partitions.
    pub(crate) fn add(&self, parts: &mut [Part], code: RowCode, width: usize, messages: &Messages) {
        let mut pieces = self.arrived(code.row_bytes(width), messages);
        pieces.sort_by_key(|(route, _)| route.from);
        for (route, bytes) in pieces {
            let own = &mut parts[route.at].pass.own;
            code.decode_each(bytes, width, |number, grad| {
                let sum = &mut own[route.rows[number] as usize * width..][..width];
                sum.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += grad);
            });
        }
    }

    /// Returns the bytes of each route that leads here, of rows of `row_bytes`.
    fn arrived<'m>(
        &'m self,
        row_bytes: usize,
        messages: &'m Messages,
    ) -> Vec<(&'m Route, &'m [u8])> {
        let mut pieces = Vec::new();
        for (routes, message) in self.incoming.iter().zip(&messages.incoming) {
            let mut rest = &message[..];
            for route in routes {
                let (bytes, others) = rest.split_at(route.rows.len() * row_bytes);
                pieces.push((route, bytes));
                rest = others;
            }
        }
        pieces
    }
}
