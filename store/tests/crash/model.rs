//! Model of the graph: acknowledged changes, and failed ones that may have happened.
//!
//! A row of a version is a set of puts, one bit each, that it may be of. The committed version is
//! known but for a commit that failed; what is pending is the content of the versions after it.

use std::collections::{BTreeMap, BTreeSet};

use super::small::{BOUNDS, N_NODES, Rows, TENSORS};
use super::world::{Finding, nodes_of};

/// For each tensor and node, the puts that its row may be of, one bit each.
pub(crate) type Puts = [[u64; N_NODES as usize]; TENSORS.len()];

/// The put of each row, by tensor.
pub(crate) type Seqs = [[u32; N_NODES as usize]; TENSORS.len()];

/// Most puts of one model; put 0 is the import.
pub(crate) const MAX_PUTS: u32 = 63;

/// Which version puts are for, as far as the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PutsFor {
    /// The version after the committed one.
    Next,
    /// The one after that: a commit of the next one has begun, in this session.
    AfterNext,
    /// Either, by partition: a commit of the next one had begun before the graph was opened.
    Either,
}

/// Possible contents of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The committed version.
    pub(crate) version: u32,
    /// The contents that all present readers see.
    latest: Puts,
    /// The version after it, as pending rows make it.
    next: Puts,
    /// With all that was put, pending for whichever version.
    all: Puts,
    puts_for: PutsFor,
    /// Versions after the committed one that may turn out to be committed in some partitions.
    n_in_doubt: u32,
    /// Puts that failed, with the nodes that were not put again: in each partition, all of them
    /// have happened or none.
    puts_in_doubt: Vec<(usize, u16, u32)>,
    /// Committed versions.
    pub(crate) frozen: BTreeMap<u32, Puts>,
    /// Versions whose layers may have been folded.
    may_be_gone: BTreeSet<u32>,
    n_puts: u32,
    /// Committed rows may be stored as an older release did, until the graph is opened for writing.
    pub(crate) is_old: bool,
}

impl Model {
    /// Returns the model of a graph that was imported and not changed.
    pub(crate) fn imported() -> Self {
        let latest = [[1; N_NODES as usize]; TENSORS.len()];
        Self {
            version: 1,
            latest,
            next: latest,
            all: latest,
            puts_for: PutsFor::Next,
            n_in_doubt: 0,
            puts_in_doubt: Vec::new(),
            frozen: BTreeMap::from([(1, latest)]),
            may_be_gone: BTreeSet::new(),
            n_puts: 1,
            is_old: false,
        }
    }

    /// Returns the number of the next put; `None` when there were too many.
    pub(crate) fn begin_put(&mut self) -> Option<u32> {
        let seq = self.n_puts;
        self.n_puts += 1;
        (seq < MAX_PUTS).then_some(seq)
    }

    /// Notes the end of a put: acknowledged with the version that it is for, or `None` where it
    /// failed.
    pub(crate) fn end_put(
        &mut self,
        tensor: usize,
        nodes: u16,
        seq: u32,
        version: Option<u32>,
    ) -> Finding {
        self.puts_in_doubt.iter_mut().filter(|it| it.0 == tensor).for_each(|it| it.1 &= !nodes);
        let is_done = version.is_some();
        if !is_done {
            self.puts_in_doubt.push((tensor, nodes, seq));
        }
        let set = |puts: &mut u64| *puts = if is_done { 0 } else { *puts } | 1 << seq;
        for node in nodes_of(nodes) {
            set(&mut self.all[tensor][node as usize]);
            let next = &mut self.next[tensor][node as usize];
            match self.puts_for {
                PutsFor::Next => set(next),
                PutsFor::AfterNext => {}
                PutsFor::Either => *next |= 1 << seq,
            }
        }
        let expected = match self.puts_for {
            PutsFor::Next => 1..=1,
            PutsFor::AfterNext => 2..=2,
            PutsFor::Either => 1..=2,
        };
        match version {
            // A put of no rows is for no version.
            Some(found)
                if nodes_of(nodes).next().is_some()
                    && !expected.contains(&(found.wrapping_sub(self.version))) =>
            {
                Err(format!("a put for version {found} over {}", self.version).into())
            }
            _ => Ok(()),
        }
    }

    /// Notes that the first step of a commit of the next version was tried.
    pub(crate) fn tried_prepare(&mut self) {
        self.puts_for = PutsFor::AfterNext;
    }

    /// Notes that all that was put was committed, as `version`.
    pub(crate) fn committed(&mut self, version: u32) -> Finding {
        let expected = match self.puts_for {
            PutsFor::Next => 1..=1,
            PutsFor::AfterNext | PutsFor::Either => 1..=2,
        };
        let n_versions = version.wrapping_sub(self.version);
        if !expected.contains(&n_versions) {
            return Err(format!("version {version} was committed over {}", self.version).into());
        }
        if n_versions == 2 {
            self.publish_next();
        }
        // Nothing is pending for a version after it.
        self.next = self.all;
        self.published();
        Ok(())
    }

    /// Notes that a commit of the next version, or of all that was put, has failed at `version`,
    /// which all partitions have reached.
    pub(crate) fn failed_commit(&mut self, version: u32) -> Finding {
        let most = if self.puts_for == PutsFor::Next { 1 } else { 2 };
        self.n_in_doubt = self.n_in_doubt.max(most);
        self.reached(version)?;
        self.tried_prepare();
        Ok(())
    }

    /// Notes that the next version was published.
    pub(crate) fn published(&mut self) {
        self.publish_next();
        (self.puts_for, self.n_in_doubt) = (PutsFor::Next, 0);
    }

    /// Notes that layers were folded, or that was tried; the segments too, if `with_segments`.
    pub(crate) fn tried_fold(&mut self, with_segments: bool) {
        let first = if with_segments { 1 } else { 2 };
        self.may_be_gone.extend(first..self.version);
    }

    /// Returns whether all layers of a version must be there.
    pub(crate) fn must_have(&self, version: u32) -> bool {
        !self.may_be_gone.contains(&version)
    }

    fn publish_next(&mut self) {
        self.version += 1;
        self.latest = self.next;
        self.next = self.all;
        self.frozen.insert(self.version, self.latest);
        self.n_in_doubt = self.n_in_doubt.saturating_sub(1);
    }

    /// Checks that all partitions have committed `version`.
    fn reached(&mut self, version: u32) -> Finding {
        self.could_be(version)?;
        while self.version < version {
            self.publish_next();
        }
        Ok(())
    }

    /// Checks whether `version` may be the lowest one of all partitions.
    pub(crate) fn could_be(&self, version: u32) -> Finding {
        let known = self.version..=self.version + self.n_in_doubt;
        if known.contains(&version) {
            return Ok(());
        }
        Err(format!("version {version}, expected {known:?}").into())
    }

    /// Notes that the graph was opened for writing: what was in doubt is decided.
    pub(crate) fn settle(&mut self, version: u32) -> Finding {
        self.reached(version)?;
        (self.n_in_doubt, self.is_old) = (0, false);
        if self.puts_for != PutsFor::Next {
            self.puts_for = PutsFor::Either;
        }
        Ok(())
    }

    /// Returns the contents that a present reader may see, one of these in each partition.
    pub(crate) fn visible(&self) -> Vec<Puts> {
        let after = [self.latest, self.next, self.all];
        after[..=self.n_in_doubt as usize].to_vec()
    }

    /// Notes that a reader of the newest version has seen these rows, which are visible.
    pub(crate) fn saw_latest(&mut self, seqs: &Seqs) -> Finding {
        for &(tensor, nodes, seq) in &self.puts_in_doubt {
            whole_in_each_part(&seqs[tensor], nodes, seq)?;
        }
        if self.n_in_doubt > 0 {
            return Ok(());
        }
        for (tensor, seqs) in seqs.iter().enumerate() {
            for (node, seq) in seqs.iter().enumerate() {
                let before = std::mem::replace(&mut self.latest[tensor][node], 1 << seq);
                // The row has not been put since.
                for later in [&mut self.next, &mut self.all] {
                    if later[tensor][node] == before {
                        later[tensor][node] = 1 << seq;
                    }
                }
            }
        }
        self.frozen.insert(self.version, self.latest);
        Ok(())
    }
}

/// Checks that each partition has the rows of one of these.
pub(crate) fn allowed(seqs: &Seqs, contents: &[Puts]) -> Finding {
    for bounds in BOUNDS.windows(2) {
        let nodes = bounds[0] as usize..bounds[1] as usize;
        let fits = |puts: &Puts| {
            seqs.iter().zip(puts).all(|(seqs, puts)| {
                let mut rows = seqs[nodes.clone()].iter().zip(&puts[nodes.clone()]);
                rows.all(|(&seq, puts)| puts >> seq & 1 != 0)
            })
        };
        if !contents.iter().any(fits) {
            let names: Vec<&str> = TENSORS.iter().map(|Rows { name, .. }| *name).collect();
            let found: Vec<_> = seqs.iter().map(|seqs| &seqs[nodes.clone()]).collect();
            let allowed: Vec<Vec<Vec<String>>> = contents
                .iter()
                .map(|puts| puts.iter().map(|it| bits(&it[nodes.clone()])).collect())
                .collect();
            return Err(format!(
                "nodes {nodes:?}, {names:?}: puts {found:?}, allowed one of {allowed:?}"
            )
            .into());
        }
    }
    Ok(())
}

fn bits(puts: &[u64]) -> Vec<String> {
    puts.iter().map(|puts| format!("{puts:#b}")).collect()
}

/// Checks that a put that failed has happened to all of its nodes of a partition, or to none.
fn whole_in_each_part(seqs: &[u32; N_NODES as usize], nodes: u16, seq: u32) -> Finding {
    for bounds in BOUNDS.windows(2) {
        let of_put = nodes_of(nodes).filter(|node| (bounds[0]..bounds[1]).contains(node));
        let happened: Vec<bool> = of_put.map(|node| seqs[node as usize] == seq).collect();
        if happened.iter().any(|&it| it) && !happened.iter().all(|&it| it) {
            return Err(format!("half of put {seq}: {happened:?}").into());
        }
    }
    Ok(())
}
