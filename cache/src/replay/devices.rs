//! A tier for each of several devices, before one host tier that they share (CaPGNN, section 4.2).

use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::index::NO_SLOT;
use crate::levels::LevelsStats;
use crate::policy::PolicySpec;
use crate::trace::Trace;

/// Directories, served as trainers do that pull through a [`crate::DeviceTier`] from one
/// [`crate::SharedTier`]: a device's misses are the host's next batch, and what comes is offered to
/// both. No tier hears of what another hits.
pub(super) struct DeviceTiers {
    devices: Vec<Directory>,
    /// For `frequency`: the ids that each device asks for.
    asked: Vec<Vec<bool>>,
    host: Directory,
    /// Whose the next batch is.
    next: usize,
    promotions: u64,
    slots: Vec<u32>,
    /// Positions that miss.
    misses: Vec<u32>,
    placements: Vec<Placement>,
    /// What the device misses, the host's slots of that, and the positions there that miss.
    below: Vec<u32>,
    host_slots: Vec<u32>,
    host_misses: Vec<u32>,
    /// Ids of the last batch that neither tier had.
    pub(super) missed: Vec<u32>,
}

impl DeviceTiers {
    /// The batches of each epoch belong to the devices in turn. Planned policies of a device rank
    /// what it asks for, that of the host what anyone does.
    pub(super) fn new(
        n_devices: u16,
        (device_rows, host_rows): (u32, u32),
        trace: &Trace,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        let id_space = trace.id_space();
        let asked = asked(trace, n_devices);
        let device = |asked: &Vec<bool>| {
            Directory::new(device_rows, id_space, &spec.among(|id| asked[id as usize]))
        };
        let devices = asked.iter().map(device).collect::<Result<_, _>>()?;
        Ok(Self {
            devices,
            asked,
            host: Directory::new(host_rows, id_space, spec)?,
            next: 0,
            promotions: 0,
            slots: Vec::new(),
            misses: Vec::new(),
            placements: Vec::new(),
            below: Vec::new(),
            host_slots: Vec::new(),
            host_misses: Vec::new(),
            missed: Vec::new(),
        })
    }

    pub(super) fn begin_epoch(&mut self) {
        self.next = 0;
    }

    pub(super) fn serve(&mut self, ids: &[u32]) {
        let device = &mut self.devices[self.next];
        self.next = (self.next + 1) % self.asked.len();
        look_up(device, ids, &mut self.slots, &mut self.misses);
        self.below.clear();
        self.below.extend(self.misses.iter().map(|&position| ids[position as usize]));
        look_up(&mut self.host, &self.below, &mut self.host_slots, &mut self.host_misses);
        self.missed.clear();
        self.missed.extend(self.host_misses.iter().map(|&at| self.below[at as usize]));
        self.host.admit(&self.below, &self.host_misses, &mut self.placements);
        device.admit(ids, &self.misses, &mut self.placements);
        let was_below = |placed: &&Placement| {
            let at = self.misses.binary_search(&placed.position);
            at.is_ok_and(|at| self.host_slots[at] != NO_SLOT)
        };
        self.promotions += self.placements.iter().filter(was_below).count() as u64;
    }

    /// The last batch is over, and all policies are told of the next epoch.
    pub(super) fn retarget(&mut self, ranking: &[u32]) {
        for (device, asked) in self.devices.iter_mut().zip(&self.asked) {
            device.lookup(&[], &mut self.slots);
            let own = ranking.iter().copied().filter(|&id| asked[id as usize]);
            device.retarget(&own.collect::<Vec<u32>>());
        }
        self.host.lookup(&[], &mut self.slots);
        self.host.retarget(ranking);
    }

    pub(super) fn stats(&self) -> LevelsStats {
        let sum = |sum: TierStats, one: &Directory| {
            let one = one.stats();
            TierStats {
                hits: sum.hits + one.hits,
                misses: sum.misses + one.misses,
                admissions: sum.admissions + one.admissions,
                evictions: sum.evictions + one.evictions,
                removals: sum.removals + one.removals,
            }
        };
        let device = self.devices.iter().fold(TierStats::default(), sum);
        let (host, promotions) = (self.host.stats(), self.promotions);
        LevelsStats { device, host, promotions, ..LevelsStats::default() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.devices.iter().map(Directory::bytes).sum::<usize>() + self.host.bytes()
    }
}

fn look_up(tier: &mut Directory, ids: &[u32], slots: &mut Vec<u32>, misses: &mut Vec<u32>) {
    tier.lookup(ids, slots);
    misses.clear();
    let missing = (0..).zip(&*slots).filter(|&(_, &slot)| slot == NO_SLOT);
    misses.extend(missing.map(|(position, _)| position));
}

/// For each device, which ids it asks for.
fn asked(trace: &Trace, n_devices: u16) -> Vec<Vec<bool>> {
    let mut asked = vec![vec![false; trace.id_space() as usize]; n_devices.into()];
    let ends = trace.epochs().iter().skip(1).copied().chain([trace.n_batches()]);
    for (&first, end) in trace.epochs().iter().zip(ends) {
        for batch in first..end {
            let own = &mut asked[((batch - first) % u32::from(n_devices)) as usize];
            trace.ids()[trace.range(batch)].iter().for_each(|&id| own[id as usize] = true);
        }
    }
    asked
}
