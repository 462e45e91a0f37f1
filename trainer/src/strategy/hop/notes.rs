//! The figures of `hop` in the reports of its steps and epochs, with migration and without.

use crate::record::EpochFigures;
use crate::report::EpochReport;
use crate::step::{HopTraffic, WorkerStep};
use crate::step_outcome::TeamStep;
use crate::strategy::mini_batches::StepNotes;

/// Figures of steps that all `n_workers` make together.
pub(super) struct HopNotes {
    pub(super) n_workers: u32,
}

impl StepNotes for HopNotes {
    fn note_worker(&self, step: &TeamStep, line: usize, worker: &mut WorkerStep) {
        let n_lines = step.outcomes.len().max(1) as u64;
        // The first line has the remainder.
        let share = |of: u64| of / n_lines + if line == 0 { of % n_lines } else { 0 };
        worker.hop = Some(HopTraffic {
            time_steps: step.n_time_steps,
            model_bytes: share(step.model_bytes),
            gradient_bytes: share(step.gradient_bytes(self.n_workers)),
        });
    }

    fn note_epoch(&self, figures: &EpochFigures, epoch: &mut EpochReport) {
        epoch.miss_rate = Some(figures.miss_rate);
        epoch.model_bytes = Some(figures.model_bytes);
        epoch.gradient_bytes = Some(figures.gradient_bytes);
        epoch.time_steps = Some(figures.time_steps);
        epoch.roots_imbalance = Some(figures.roots_imbalance);
    }
}
