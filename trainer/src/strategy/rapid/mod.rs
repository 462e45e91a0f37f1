//! RapidGNN (algorithm 1): batches from a schedule on disk, rows from what was kept for them.

pub(crate) mod config;
mod schedule;

use std::{ops::ControlFlow, path::PathBuf, sync::Arc, thread::Scope, time::Instant};

use lodestore_client::Prefetcher;
use lodestore_client::hot_set_cache::HotSetStats;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::{BatchSource, Window};
use lodestore_client::scheduled::{PlannedBatches, PlannedConfig};
use lodestore_graph::sampler::Deal;

use super::mini_batches::{BatchFeed, MiniBatchRun};
use super::{Observer, StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::TrainConfig;
use crate::error::{TrainError, check};
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{Progress, ScheduleReport, TrainReport};
use crate::setup::Setup;
use crate::step::Place;
use crate::worker::{KeptRows, WindowBatches};
use crate::workers::Feed;
use config::{RapidConfig, ScheduleConfig};
use schedule::Written;

/// Batches of a schedule, which one process writes for all.
pub(crate) struct ScheduledFeed<'scope> {
    setup: &'scope Setup<'scope>,
    config: &'scope ScheduleConfig,
    written: Option<Arc<Written>>,
}

impl StrategyConfig for RapidConfig {
    fn name(&self) -> &'static str {
        "rapid"
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::mini_batches(config, self.roots)
    }

    fn agreed_settings(&self) -> String {
        self.schedule.keep.to_string()
    }

    fn deal(&self) -> Deal {
        self.roots.deal()
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        Box::new(MiniBatchRun::new(setup, ScheduledFeed::new(setup, &self.schedule)))
    }
}

impl KeptRows for PlannedBatches<'_> {
    fn stats(&self) -> HotSetStats {
        self.kept()
    }

    fn pulled_until(&self, epoch: u32) -> LoadStats {
        PlannedBatches::pulled_until(self, epoch)
    }
}

impl<'scope> ScheduledFeed<'scope> {
    pub(crate) fn new(setup: &'scope Setup<'scope>, config: &'scope ScheduleConfig) -> Self {
        Self { setup, config, written: None }
    }
}

impl<'scope> BatchFeed<'scope> for ScheduledFeed<'scope> {
    /// Writes the schedule, if it is not there; one process does so for all.
    fn prepare(
        &mut self,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let (setup, config) = (self.setup, self.config);
        // Absolute, since processes may run in other folders.
        let path = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
        let text = path.to_str();
        let can_travel = text.is_some() || group.n_ranks() == 1;
        check(can_travel, "schedule.path", "UTF-8 with several processes", path.display())?;
        let (start, mut flow) = (Instant::now(), ControlFlow::Continue(()));
        let mut is_stored = false;
        if group.leads() {
            is_stored = schedule::write(setup, config, &mut |done, total| {
                if progress(&Progress::Schedule { done, total }).is_break() {
                    flow = ControlFlow::Break(());
                }
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        let of_leader = group.of_leader(&text.unwrap_or_default().to_owned())?;
        let seconds = start.elapsed().as_secs_f64();
        let path = if group.leads() { path } else { PathBuf::from(of_leader) };
        let written = schedule::open(setup, config, path, is_stored, seconds)?;
        written.check_digest(&group.of_leader(&written.schedule.digest_hex())?)?;
        self.written = Some(Arc::new(written));
        Ok(flow)
    }

    fn start<'env>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        place: Place,
    ) -> Result<Feed<'scope, ()>, TrainError> {
        let setup = self.setup;
        let Some(written) = &self.written else { unreachable!("a schedule before workers") };
        let loader = setup.loader_of(worker)?;
        let n_batches = setup.n_batches_of(worker);
        let first = place.first_batch(n_batches);
        let planned = PlannedConfig {
            worker,
            first,
            keep: self.config.keep,
            n_hot: written.budget.n_hot,
            fill_rows: written.n_spare,
        };
        let (schedule, path) = (&written.schedule, &written.path);
        let source = PlannedBatches::start(scope, schedule, path, &loader, planned)?;
        let source = Arc::new(source);
        let kept: Arc<dyn KeptRows + 'scope> = Arc::clone(&source) as _;
        let joined = Window::joined(written.budget.window);
        // An epoch's batches are not loaded together with the next one's.
        let together = self.config.together.unwrap_or(joined.together);
        let window = Window { together: together.min(n_batches as usize), ..joined };
        let source: Arc<dyn BatchSource + 'scope> = source;
        let prefetcher = Prefetcher::start(scope, source, loader, window, first);
        Ok(Feed { batches: Box::new(WindowBatches(prefetcher)), kept: Some(kept) })
    }

    fn report(&self, report: &mut TrainReport) {
        let Some(written) = &self.written else { return };
        report.schedule = Some(ScheduleReport {
            seconds: written.seconds,
            is_stored: written.is_stored,
            n_bytes: written.schedule.n_bytes(),
            digest: written.schedule.digest_hex(),
            memory_bound_bytes: written.bound_bytes,
            keep: self.config.keep,
            n_hot: written.budget.n_hot as u64,
            window: written.budget.window as u64,
            window_asked: self.config.window as u64,
        });
    }
}
