//! Servers that a follower asks: the named ones, and those that took partitions over from them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_schema::reply::{Description, Role};

use crate::address::Address;
use crate::error::ClientError;
use crate::remote::ClientConfig;
use crate::remote::describe;

/// Most servers that are asked beside the named ones: partitions may have moved again and again.
const ANNOUNCED_MAX: usize = 64;

/// Servers that may write partitions.
#[derive(Debug)]
pub(super) struct Sources {
    named: Vec<Address>,
    /// Servers that took a partition over. They are kept, since the server that announced them may
    /// be gone.
    learned: Vec<Address>,
}

/// The descriptions of all servers at one time.
pub(super) struct Survey {
    answers: Vec<(Address, Result<Description, ClientError>)>,
}

impl Sources {
    pub(super) fn new(named: Vec<Address>) -> Self {
        Self { named, learned: Vec::new() }
    }

    /// Asks all servers, and those to which they report that a partition has moved: `part`, or any.
    pub(super) fn survey(&self, config: &ClientConfig, part: Option<PartId>) -> Survey {
        let mut survey = Survey { answers: Vec::new() };
        let mut to_ask: Vec<Address> = self.named.iter().chain(&self.learned).cloned().collect();
        let n_max = to_ask.len() + ANNOUNCED_MAX;
        let mut at = 0;
        while let Some(address) = to_ask.get(at).cloned() {
            at += 1;
            let answer = describe(&address, &config.security, Instant::now() + config.deadline);
            if let Ok(description) = &answer {
                for announced in announced(&address, description, part) {
                    if to_ask.len() < n_max && !to_ask.contains(&announced) {
                        to_ask.push(announced);
                    }
                }
            }
            survey.answers.push((address, answer));
        }
        survey
    }

    /// Returns the server that writes a partition now, and remembers to ask it later.
    pub(super) fn writer_of(
        &mut self,
        config: &ClientConfig,
        part: PartId,
    ) -> Result<Address, ClientError> {
        let writer = self.survey(config, Some(part)).writer_of(part)?;
        if !self.named.contains(&writer) && !self.learned.contains(&writer) {
            if self.learned.len() == ANNOUNCED_MAX {
                self.learned.remove(0);
            }
            self.learned.push(writer.clone());
        }
        Ok(writer)
    }
}

/// Returns the servers to which partitions have moved from this server, as it reports.
fn announced(by: &Address, description: &Description, part: Option<PartId>) -> Vec<Address> {
    let is_wanted = |moved: u16| part.is_none_or(|part| part.0 == moved);
    let moved = description.moved.iter().filter(|it| is_wanted(it.part));
    let addresses = moved.filter_map(|it| it.to.parse::<Address>().ok());
    addresses.filter(|to| !to.is_of_one_machine() || by.is_of_one_machine()).collect()
}

impl Survey {
    /// Returns the descriptions of the servers that responded.
    fn descriptions(&self) -> impl Iterator<Item = (&Address, &Description)> {
        let answers = self.answers.iter();
        answers.filter_map(|(address, answer)| Some((address, answer.as_ref().ok()?)))
    }

    /// Returns whether all servers responded.
    pub(super) fn is_whole(&self) -> bool {
        self.answers.iter().all(|(_, answer)| answer.is_ok())
    }

    /// Returns the number of partitions of the graph, if a server responded.
    pub(super) fn n_parts(&self) -> Option<u16> {
        let (_, first) = self.descriptions().next()?;
        Some(u16::try_from(first.bounds.len().saturating_sub(1)).unwrap_or(u16::MAX))
    }

    /// Fails if servers serve different graphs.
    pub(super) fn check_graph(&self) -> Result<(), ClientError> {
        let mut descriptions = self.descriptions();
        let Some((other, first)) = descriptions.next() else { return Ok(()) };
        match descriptions.find(|(_, description)| description.graph != first.graph) {
            None => Ok(()),
            Some((address, _)) => {
                let (address, other) = (address.clone(), other.clone());
                Err(ClientError::GraphsDiffer { address, other })
            }
        }
    }

    /// Returns the partitions that some server writes.
    pub(super) fn written(&self) -> BTreeSet<PartId> {
        let held = self.descriptions().flat_map(|(_, description)| description.held());
        let written = held.filter(|(_, state)| state.role == Role::Writer);
        written.map(|(part, _)| PartId(part)).collect()
    }

    /// Returns the server that writes a partition.
    ///
    /// # Errors
    /// `TwoWriters`, `NotWritten`, or `NoSource` if no server responded.
    pub(super) fn writer_of(&self, part: PartId) -> Result<Address, ClientError> {
        let is_writer = |description: &Description| {
            description.state(part.0).is_some_and(|state| state.role == Role::Writer)
        };
        let mut writers = self.descriptions().filter(|(_, description)| is_writer(description));
        let Some((writer, description)) = writers.next() else {
            return Err(self.not_written(&[part]));
        };
        match writers.find(|(_, other)| !other.is_same_server(description)) {
            None => Ok(writer.clone()),
            Some((address, _)) => {
                let (address, other) = (address.clone(), writer.clone());
                Err(ClientError::TwoWriters { part, address, other })
            }
        }
    }

    /// Returns the error for partitions that no server writes.
    pub(super) fn not_written(&self, parts: &[PartId]) -> ClientError {
        if self.descriptions().next().is_none()
            && let Some(error) = self.silence()
        {
            return error;
        }
        let servers = self.answers.iter().map(|(address, answer)| match answer {
            Ok(description) => roles_at(address, description, parts),
            Err(error) => format!("{error}"),
        });
        let servers: Vec<String> = servers.collect();
        ClientError::NotWritten { parts: ranges(parts), servers: servers.join("; ") }
    }

    /// Returns the error for a server that has not responded, if there is one.
    pub(super) fn silence(&self) -> Option<ClientError> {
        let error = self.answers.iter().find_map(|(_, answer)| answer.as_ref().err())?;
        Some(ClientError::NoSource { reason: error.to_string() })
    }
}

/// Returns the roles of a server as text: the partitions that it writes, and its role for `parts`.
fn roles_at(address: &Address, description: &Description, parts: &[PartId]) -> String {
    let of_role = |role: Role| -> Vec<PartId> {
        let held = description.held().filter(|(_, state)| state.role == role);
        held.map(|(part, _)| PartId(part)).collect()
    };
    let mut text = match &of_role(Role::Writer)[..] {
        [] => format!("{address} writes none"),
        written => format!("{address} writes {}", ranges(written)),
    };
    for (role, verb) in [(Role::Reader, "reads"), (Role::Follower, "follows")] {
        let held: Vec<PartId> = of_role(role).into_iter().filter(|it| parts.contains(it)).collect();
        if !held.is_empty() {
            text += &format!(", only {verb} {}", ranges(&held));
        }
    }
    let mut gone: BTreeMap<&str, Vec<PartId>> = BTreeMap::new();
    for moved in &description.moved {
        if parts.contains(&PartId(moved.part)) {
            gone.entry(&moved.to).or_default().push(PartId(moved.part));
        }
    }
    for (to, parts) in gone {
        text += &format!(", released {} to {to}", ranges(&parts));
    }
    text
}

/// Formats ascending partitions: `0 to 3, 5`.
pub(super) fn ranges(parts: &[PartId]) -> String {
    let mut found: Vec<(u16, u16)> = Vec::new();
    for part in parts {
        match found.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(part.0) => *last = part.0,
            _ => found.push((part.0, part.0)),
        }
    }
    let range = |&(first, last): &(u16, u16)| match last - first {
        0 => format!("{first}"),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let noun = if parts.len() == 1 { "partition" } else { "partitions" };
    let ranges: Vec<String> = found.iter().map(range).collect();
    format!("{noun} {}", ranges.join(", "))
}

#[cfg(test)]
mod tests {
    use lodestore_schema::reply::{MovedPart, PartState};

    use super::*;

    fn server(parts: &[u16], role: Role, moved: &[(u16, &str)]) -> Description {
        let moved = moved.iter().map(|&(part, to)| MovedPart { part, to: to.to_owned() });
        Description {
            bounds: vec![0, 1, 2, 3, 4],
            parts: parts.to_vec(),
            states: vec![PartState { version: 1, tag: 0, role }; parts.len()],
            moved: moved.collect(),
            ..Description::default()
        }
    }

    fn survey(servers: Vec<(&str, Description)>) -> Survey {
        let answer = |(address, it): (&str, Description)| (address.parse().unwrap(), Ok(it));
        Survey { answers: servers.into_iter().map(answer).collect() }
    }

    #[test]
    fn the_error_for_a_partition_without_a_writer_names_the_servers_and_their_roles() {
        let asked = survey(vec![
            ("127.0.0.1:1", server(&[0, 1], Role::Writer, &[(2, "127.0.0.1:2")])),
            ("127.0.0.1:2", server(&[2], Role::Reader, &[])),
        ]);
        assert_eq!(asked.writer_of(PartId(1)).unwrap().to_string(), "127.0.0.1:1");
        let error = asked.writer_of(PartId(2)).unwrap_err().to_string();
        for said in [
            "partition 2",
            "127.0.0.1:1 writes partitions 0, 1, released partition 2 to 127.0.0.1:2",
            "127.0.0.1:2 writes none, only reads partition 2",
        ] {
            assert!(error.contains(said), "no `{said}` in {error}");
        }
        assert_eq!(asked.written(), [PartId(0), PartId(1)].into());
        assert_eq!(asked.n_parts(), Some(4));
    }

    #[test]
    fn two_writers_are_named_and_two_addresses_of_one_server_are_one() {
        let two = |instances: [u64; 2]| {
            let of = |instance| Description { instance, ..server(&[0], Role::Writer, &[]) };
            survey(vec![("127.0.0.1:1", of(instances[0])), ("127.0.0.1:2", of(instances[1]))])
        };
        let error = two([1, 2]).writer_of(PartId(0)).unwrap_err();
        assert!(matches!(&error, ClientError::TwoWriters { part: PartId(0), .. }), "{error}");
        assert!(error.to_string().contains("127.0.0.1:2 and 127.0.0.1:1"), "{error}");
        assert_eq!(two([7, 7]).writer_of(PartId(0)).unwrap().to_string(), "127.0.0.1:1");
    }

    /// A path of another machine means nothing here, and a local port is another server.
    #[test]
    fn a_local_address_is_accepted_from_a_server_on_this_machine_only() {
        let moved = [(1, "unix:/run/l"), (1, "127.0.0.1:7"), (1, "10.0.0.6:7"), (2, "10.0.0.7:7")];
        let description = server(&[0], Role::Writer, &moved);
        let told = |by: &str, part: Option<u16>| -> Vec<String> {
            let found = announced(&by.parse().unwrap(), &description, part.map(PartId));
            found.iter().map(ToString::to_string).collect()
        };
        let all = ["unix:/run/l", "127.0.0.1:7", "10.0.0.6:7", "10.0.0.7:7"];
        assert_eq!(told("localhost:1", None), all);
        assert_eq!(told("unix:/run/m", Some(1)), all[..3]);
        assert_eq!(told("10.0.0.5:1", Some(1)), ["10.0.0.6:7"]);
    }

    #[test]
    fn partitions_are_written_as_ranges() {
        let of = |parts: &[u16]| ranges(&parts.iter().copied().map(PartId).collect::<Vec<_>>());
        assert_eq!(of(&[3]), "partition 3");
        assert_eq!(of(&[0, 1, 3]), "partitions 0, 1, 3");
        assert_eq!(of(&[0, 1, 2, 5, 65_535]), "partitions 0 to 2, 5, 65535");
    }
}
