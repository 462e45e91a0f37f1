//! Commits and compactions: of whole servers, all of those that are connected.

use std::time::{Duration, Instant};

use lodestore_schema::{Description, Reply, RequestBody, UpdateStats};

use super::Client;
use super::describe::{ask_server, describe, stats};
use super::fleet::Fleet;
use super::patience::{Patience, Remedy};
use crate::{Address, ClientError};

/// How often a compaction is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A compaction of one server that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionRun {
    /// The server.
    pub address: Address,
    /// Its number there, counted since the server started.
    pub run: u64,
}

impl Client {
    /// Makes everything that was put on the servers before this call a version, the same number on
    /// all of them; gives it.
    ///
    /// Every server must take updates. The servers commit one after the other: after an error some
    /// may have committed. Then commit again; where a server has committed already, nothing
    /// happens, which is also why an answer that was lost is asked for again.
    ///
    /// # Errors
    /// [`ClientError::NotWritable`], [`ClientError::NoHolder`] where partitions come and go and nobody
    /// has one, or what kept a server from committing.
    pub fn commit(&self) -> Result<u32, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let (fleet, security) = (self.fleet_for_all(deadline)?, &self.config.security);
        let mut newest = 0;
        for address in fleet.addresses() {
            let description = self.patiently(deadline, || describe(address, security, deadline))?;
            check(&fleet, address, &description)?;
            newest = newest.max(description.version);
        }
        let mut committed = 0;
        for address in fleet.addresses() {
            // What is pending there is for this version or an earlier one.
            let body = RequestBody::Commit { version: newest.saturating_add(1) };
            let commit = || match ask_server(address, security, fleet.graph, body, deadline)? {
                Reply::Committed { version } => Ok(version),
                _ => Err(ClientError::Confused { address: address.clone() }),
            };
            committed = committed.max(self.patiently(deadline, commit)?);
        }
        Ok(committed)
    }

    /// Has every server fold what is committed into its segments; returns as soon as all have
    /// started to, or wait to.
    ///
    /// # Errors
    /// [`ClientError::NotWritable`], or what kept a server from starting.
    pub fn compact(&self) -> Result<Vec<CompactionRun>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let (fleet, security) = (self.fleet_for_all(deadline)?, &self.config.security);
        for address in fleet.addresses() {
            let description = self.patiently(deadline, || describe(address, security, deadline))?;
            check(&fleet, address, &description)?;
        }
        let compact = |address: &Address| {
            let (graph, body) = (fleet.graph, RequestBody::Compact);
            let ask = || match ask_server(address, security, graph, body, deadline)? {
                Reply::Compacting { run } => Ok(CompactionRun { address: address.clone(), run }),
                _ => Err(ClientError::Confused { address: address.clone() }),
            };
            self.patiently(deadline, ask)
        };
        fleet.addresses().map(compact).collect()
    }

    /// Waits until these compactions are over, however long they take; `progress` is told the bytes
    /// that the one that runs has written and will write.
    ///
    /// # Errors
    /// [`ClientError::Compaction`] when one has failed or its server was started anew, and what
    /// kept a server from answering within the deadline.
    pub fn wait_for_compactions(
        &self,
        runs: &[CompactionRun],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ClientError> {
        let security = &self.config.security;
        for CompactionRun { address, run } in runs {
            loop {
                let deadline = Instant::now() + self.config.deadline;
                let stats = self.patiently(deadline, || stats(address, security, deadline))?;
                progress(stats.updates.run_bytes, stats.updates.run_bytes_total);
                if is_over(address, *run, &stats.updates)? {
                    break;
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Asks again what may be asked again, within the attempts and the deadline.
    pub(super) fn patiently<T>(
        &self,
        deadline: Instant,
        ask: impl Fn() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut patience = Patience::new(&self.config, deadline);
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let remedy = Remedy::of(&error);
            let remedy = if remedy.is_final() { Remedy::None } else { remedy };
            std::thread::sleep(patience.pause(remedy).ok_or(error)?);
        }
    }
}

/// Fails unless the server that is there now has the graph that we connected to, for writing.
fn check(fleet: &Fleet, address: &Address, now: &Description) -> Result<(), ClientError> {
    if now.graph_tag() != fleet.graph {
        let (address, other) = (address.clone(), address.clone());
        return Err(ClientError::GraphsDiffer { address, other });
    }
    if !now.writable {
        return Err(ClientError::NotWritable { address: address.clone(), of: String::new() });
    }
    Ok(())
}

/// Whether compaction `run` is over.
fn is_over(address: &Address, run: u64, stats: &UpdateStats) -> Result<bool, ClientError> {
    let failed = |reason: &str| {
        let (address, reason) = (address.clone(), reason.to_owned());
        Err(ClientError::Compaction { address, reason })
    };
    if stats.runs_asked < run {
        return failed("the server was started anew meanwhile; compact again");
    }
    if stats.runs_ended >= run && !stats.run_failure.is_empty() {
        return failed(&stats.run_failure);
    }
    Ok(stats.runs_ended >= run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_when_it_has_ended_and_never_on_a_server_that_does_not_know_it() {
        let address: Address = "127.0.0.1:1".parse().unwrap();
        let stats = |runs_asked, runs_ended, failure: &str| UpdateStats {
            runs_asked,
            runs_ended,
            run_failure: failure.into(),
            ..UpdateStats::default()
        };
        assert!(!is_over(&address, 2, &stats(2, 1, "")).unwrap());
        assert!(!is_over(&address, 2, &stats(2, 1, "the run before had no room")).unwrap());
        assert!(is_over(&address, 2, &stats(3, 2, "")).unwrap());
        for stats in [stats(2, 2, "no room"), stats(1, 1, ""), stats(0, 0, "")] {
            let error = is_over(&address, 2, &stats).unwrap_err();
            assert!(matches!(error, ClientError::Compaction { .. }), "{error}");
        }
    }
}
