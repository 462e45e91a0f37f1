//! The partitions that a follower follows, chosen before the first byte is fetched.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;

use super::FollowPlan;
use super::sources::{Sources, Survey};
use crate::error::ClientError;

/// Pause before silent servers are asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// The partitions to follow, and those of the graph that have no writer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartChoice {
    /// Ascending.
    pub(super) parts: Vec<PartId>,
    /// Partitions that are not followed because none of the servers asked writes them.
    pub(super) unwritten: Vec<PartId>,
}

impl PartChoice {
    /// Chooses partitions. `here` has those in the folder, which need no writer yet. Waits for
    /// silent servers until the deadline of the plan, as long as a partition may need them.
    pub(super) fn within(
        plan: &FollowPlan,
        sources: &Sources,
        here: &[PartId],
    ) -> Result<Self, ClientError> {
        let here: BTreeSet<PartId> = here.iter().copied().collect();
        let wanted: BTreeSet<PartId> = plan.parts.iter().copied().collect();
        if !wanted.is_empty() && wanted.is_subset(&here) {
            return Ok(Self { parts: wanted.into_iter().collect(), unwritten: Vec::new() });
        }
        let end = Instant::now() + plan.config.deadline;
        loop {
            let survey = sources.survey(&plan.config, None);
            survey.check_graph()?;
            let is_late = Instant::now() + PAUSE >= end;
            let chosen = match wanted.is_empty() {
                true => Self::of_written(&survey, &here, is_late),
                false => Self::of_wanted(&survey, &wanted, &here),
            };
            match chosen {
                Err(error) if survey.is_whole() || is_late => return Err(error),
                Err(ClientError::TwoWriters { part, address, other }) => {
                    return Err(ClientError::TwoWriters { part, address, other });
                }
                Err(_) => std::thread::sleep(PAUSE),
                chosen => return chosen,
            }
        }
    }

    /// Chooses the named partitions: each is in the folder, or has one writer.
    fn of_wanted(
        survey: &Survey,
        wanted: &BTreeSet<PartId>,
        here: &BTreeSet<PartId>,
    ) -> Result<Self, ClientError> {
        let (mut unwritten, written) = (Vec::new(), survey.written());
        for &part in wanted.difference(here) {
            if written.contains(&part) {
                survey.writer_of(part)?;
            } else {
                unwritten.push(part);
            }
        }
        if !unwritten.is_empty() {
            return Err(survey.not_written(&unwritten));
        }
        Ok(Self { parts: wanted.iter().copied().collect(), unwritten })
    }

    /// Chooses the partitions that servers write, and those in the folder. A silent server may
    /// write others, so it is waited for unless `is_late`, or all partitions are chosen.
    fn of_written(
        survey: &Survey,
        here: &BTreeSet<PartId>,
        is_late: bool,
    ) -> Result<Self, ClientError> {
        let written = survey.written();
        for &part in written.difference(here) {
            survey.writer_of(part)?;
        }
        let chosen: BTreeSet<PartId> = written.union(here).copied().collect();
        let all = (0..survey.n_parts().unwrap_or(0)).map(PartId);
        let unwritten: Vec<PartId> = all.filter(|part| !chosen.contains(part)).collect();
        let is_whole = survey.n_parts().is_some() && unwritten.is_empty();
        if let Some(silence) = survey.silence()
            && !is_whole
        {
            // Partitions in the folder are served without their writers.
            let may_go_on = is_late && !here.is_empty();
            if !may_go_on {
                return Err(silence);
            }
            tracing::warn!(%silence, "not following partitions that only a silent server writes");
        }
        if chosen.is_empty() {
            return Err(survey.not_written(&unwritten));
        }
        Ok(Self { parts: chosen.into_iter().collect(), unwritten })
    }
}
