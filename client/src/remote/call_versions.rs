//! The versions that one call reads. Rows of one partition may arrive in several replies: of
//! several shards of a server, of several requests, or of a server that takes over. The first reply
//! fixes the version; later requests ask for exactly that one.

use lodestore_graph::PartId;
use lodestore_schema::Versions;
use lodestore_schema::versions::{PartVersion, VersionTag};

use super::floors::Floors;
use crate::route::PartSet;
use crate::source::VersionSpan;

/// The versions in the replies of one call.
#[derive(Default)]
pub(super) struct CallVersions {
    /// Partitions, each with the first reply that had its rows.
    answers: Vec<(PartSet, Versions)>,
}

/// The versions that a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) versions: Versions,
    /// Whether these are exact versions, 0 for the latest, instead of the lowest to accept.
    pub(super) exactly: bool,
}

impl CallVersions {
    /// Returns the versions that a request for these partitions asks for; `None` if they do not fit
    /// into one request.
    pub(super) fn wanted(&self, parts: &PartSet, floors: &Floors) -> Option<Wanted> {
        let read = |part: PartId| self.of(part).unwrap_or_default();
        if self.answers.is_empty() || parts.iter().all(|part| read(part).number == 0) {
            return Some(Wanted { versions: floors.wanted(parts), exactly: false });
        }
        let exact = parts.iter().map(|part| PartVersion { part: part.0, version: read(part) });
        Some(Wanted { versions: Versions::exactly(exact)?, exactly: true })
    }

    /// Records a reply. Returns `false`, and records nothing, if an earlier reply had another
    /// version of some partition.
    pub(super) fn agree(&mut self, parts: &PartSet, versions: &Versions) -> bool {
        if let [(known, answer)] = &mut self.answers[..]
            && answer == versions
        {
            known.insert_all(parts);
            return true;
        }
        let differs = |part: PartId| {
            let found = versions.of(part.0);
            let known = self.of(part);
            known.is_some_and(|it| it.number != found.number || it.is_other_history(found))
        };
        if parts.iter().any(differs) {
            return false;
        }
        match self.answers.iter_mut().find(|(_, answer)| answer == versions) {
            Some((known, _)) => known.insert_all(parts),
            None => self.answers.push((parts.clone(), versions.clone())),
        }
        true
    }

    /// Forgets all replies: the call starts again.
    pub(super) fn clear(&mut self) {
        self.answers.clear();
    }

    /// Returns the lowest and the highest version of the rows.
    pub(super) fn span(&self) -> VersionSpan {
        let mut span = VersionSpan::default();
        for (parts, versions) in &self.answers {
            if versions.above.is_empty() {
                span += VersionSpan::of(versions.lowest.number);
            } else {
                parts.iter().for_each(|part| span += VersionSpan::of(versions.of(part.0).number));
            }
        }
        span
    }

    /// Returns the version of a partition in the recorded replies.
    fn of(&self, part: PartId) -> Option<VersionTag> {
        let answer = self.answers.iter().find(|(parts, _)| parts.contains(part));
        answer.map(|(_, versions)| versions.of(part.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(all: &[u16]) -> PartSet {
        let mut set = PartSet::default();
        all.iter().for_each(|&part| set.insert(PartId(part)));
        set
    }

    fn versions(lowest: u32, above: &[(u16, u32)]) -> Versions {
        let version = |number| VersionTag { number, tag: u64::from(number) << 8 };
        let above =
            above.iter().map(|&(part, number)| PartVersion { part, version: version(number) });
        Versions { lowest: version(lowest), above: above.collect() }
    }

    #[test]
    fn the_first_reply_fixes_the_version_of_a_partition() {
        let (floors, mut call) = (Floors::new(200), CallVersions::default());
        assert_eq!(call.wanted(&parts(&[0, 1]), &floors), Some(Wanted::default()));
        assert!(call.agree(&parts(&[0, 1]), &versions(3, &[(1, 4)])));
        assert!(call.agree(&parts(&[1]), &versions(3, &[(1, 4)])), "the same answer");
        assert!(!call.agree(&parts(&[0]), &versions(4, &[])), "a commit was between");
        assert!(call.agree(&parts(&[1, 2]), &versions(4, &[])), "the same version of partition 1");
        let other = Versions { lowest: VersionTag { number: 4, tag: 1 }, above: Vec::new() };
        assert!(!call.agree(&parts(&[2]), &other), "another history");
        let wanted = call.wanted(&parts(&[0, 1, 2]), &floors).unwrap();
        assert_eq!(wanted, Wanted { versions: versions(3, &[(1, 4), (2, 4)]), exactly: true });
        // A partition without a reply is read at its latest version.
        let wanted = call.wanted(&parts(&[0, 7]), &floors).unwrap();
        assert_eq!((wanted.versions.of(0).number, wanted.versions.of(7).number), (3, 0));
        assert_eq!(call.span(), VersionSpan { lowest: 3, highest: 4 });
        call.clear();
        assert_eq!(call.wanted(&parts(&[0]), &floors), Some(Wanted::default()));
        assert_eq!(call.span(), VersionSpan::default());
    }

    #[test]
    fn versions_that_do_not_fit_into_a_request_restart_the_call() {
        let (floors, mut call) = (Floors::new(200), CallVersions::default());
        let all: Vec<u16> = (0..200).collect();
        assert!(call.agree(&parts(&all), &versions(3, &[])));
        assert!(call.wanted(&parts(&all), &floors).is_some());
        let more: Vec<u16> = (100..300).collect();
        assert_eq!(call.wanted(&parts(&more), &floors), None);
    }
}
