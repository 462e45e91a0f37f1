//! Rows between partitions: senders, receivers, and their order.
//!
//! Each process packs, for each process, the rows that its partitions send to the partitions there:
//! by sender, then by receiver. Rows between partitions of one process go the same way, so that
//! they are narrowed alike, and results depend on the partitions alone.

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

/// Rows from one partition to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) n_rows: usize,
}

/// All routes that this process takes part in, one way: of rows to halos, or of gradients back.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    placement: Placement,
    way: Way,
    /// To each rank, and from each, in the order in which rows stand in a message.
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

/// Messages of one exchange, by rank; their memory stays.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) outgoing: Vec<Vec<u8>>,
    pub(crate) incoming: Vec<Vec<u8>>,
}

/// Bytes of rows that a partition has sent to other workers in one exchange, and what was lost by
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
    /// Lists the routes of `parts`, those of this process in rising order, one way.
    pub(crate) fn new(parts: &[Part], placement: Placement, way: Way) -> Self {
        let ranks = 0..placement.n_ranks;
        let mut all: Vec<Route> = Vec::new();
        for part in parts {
            let (own, graph) = (part.graph.part, &part.graph);
            let sends = graph.sends.iter().map(|(to, rows)| (own, *to, rows.len()));
            let receives = graph.receives.iter().map(|(from, rows)| (*from, own, rows.len()));
            let routes = sends.chain(receives).map(|(owner, halo, n_rows)| match way {
                Way::Forward => Route { from: owner, to: halo, n_rows },
                Way::Back => Route { from: halo, to: owner, n_rows },
            });
            all.extend(routes);
        }
        all.sort_by_key(|route| (route.from, route.to));
        // Both ends list what stays in the process.
        all.dedup();
        let with = |rank: u32, own: fn(&Route) -> u32, other: fn(&Route) -> u32| {
            let is_between = |route: &&Route| {
                placement.rank_of(own(route)) == placement.rank
                    && placement.rank_of(other(route)) == rank
            };
            all.iter().filter(is_between).cloned().collect::<Vec<Route>>()
        };
        let outgoing = ranks.clone().map(|rank| with(rank, |of| of.from, |of| of.to)).collect();
        let incoming = ranks.map(|rank| with(rank, |of| of.to, |of| of.from)).collect();
        Self { placement, way, outgoing, incoming }
    }

    /// Returns the bytes that come from each rank, of rows of `row_bytes`.
    pub(crate) fn incoming_bytes(&self, row_bytes: usize) -> Vec<usize> {
        let bytes =
            |routes: &Vec<Route>| routes.iter().map(|of| of.n_rows * row_bytes).sum::<usize>();
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
            let n_rows: usize = routes.iter().map(|route| route.n_rows).sum();
            message.resize(n_rows * row_bytes, 0);
            let mut rest = &mut message[..];
            for route in routes {
                let (out, others) = rest.split_at_mut(route.n_rows * row_bytes);
                rest = others;
                let Some(at) = place_of(parts, route.from) else { continue };
                let part = &parts[at];
                let loss = match self.way {
                    Way::Forward => {
                        let rows = rows_to(part, route.to);
                        code.encode(&part.pass.own, width, rows, out)
                    }
                    Way::Back => {
                        let range = range_from(part, route.to);
                        let rows: Vec<u32> = (range.start as u32..range.end as u32).collect();
                        code.encode(&part.pass.halo, width, &rows, out)
                    }
                };
                losses.push((route, at, loss));
                if self.placement.worker_of(route.from) != self.placement.worker_of(route.to) {
                    sent[at].bytes += out.len() as u64;
                }
            }
        }
        // In the order of partitions, wherever these are.
        losses.sort_by_key(|(route, ..)| (route.from, route.to));
        losses.into_iter().for_each(|(_, at, loss)| sent[at].loss.add(loss));
        sent
    }

    /// Puts rows that have come into the halos of `parts`.
    pub(crate) fn unpack(
        &self,
        parts: &mut [Part],
        code: RowCode,
        width: usize,
        messages: &Messages,
    ) {
        let row_bytes = code.row_bytes(width);
        for (routes, message) in self.incoming.iter().zip(&messages.incoming) {
            let mut rest = &message[..];
            for route in routes {
                let (bytes, others) = rest.split_at(route.n_rows * row_bytes);
                rest = others;
                let Some(at) = place_of(parts, route.to) else { continue };
                let range = range_from(&parts[at], route.from);
                let halo = &mut parts[at].pass.halo;
                code.decode(bytes, width, &mut halo[range.start * width..range.end * width]);
            }
        }
    }

    /// Adds gradients that have arrived to those of own rows of `parts`. Each row adds them in the
    /// order of the partitions that they come from, wherever these are.
    pub(crate) fn add(&self, parts: &mut [Part], code: RowCode, width: usize, messages: &Messages) {
        let row_bytes = code.row_bytes(width);
        let mut pieces = Vec::new();
        for (routes, message) in self.incoming.iter().zip(&messages.incoming) {
            let mut rest = &message[..];
            for route in routes {
                let (bytes, others) = rest.split_at(route.n_rows * row_bytes);
                pieces.push((route, bytes));
                rest = others;
            }
        }
        pieces.sort_by_key(|(route, _)| route.from);
        for (route, bytes) in pieces {
            let Some(at) = place_of(parts, route.to) else { continue };
            let part = &mut parts[at];
            let rows = rows_to(part, route.from).to_vec();
            let own = &mut part.pass.own;
            code.decode_each(bytes, width, |number, grad| {
                let sum = &mut own[rows[number] as usize * width..][..width];
                sum.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += grad);
            });
        }
    }
}

fn place_of(parts: &[Part], part: u32) -> Option<usize> {
    parts.iter().position(|of| of.graph.part == part)
}

/// Returns the own rows that partition `to` has in its halo.
fn rows_to(part: &Part, to: u32) -> &[u32] {
    let sends = part.graph.sends.iter().find(|(other, _)| *other == to);
    sends.map_or(&[], |(_, rows)| rows)
}

/// Returns the places in the halo of the rows of partition `from`.
fn range_from(part: &Part, from: u32) -> std::ops::Range<usize> {
    let receives = part.graph.receives.iter().find(|(other, _)| *other == from);
    receives.map_or(0..0, |(_, range)| range.clone())
}
