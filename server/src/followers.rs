//! Servers that follow this one, as they report over their connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::limits::FOLLOWERS_MAX;
use lodestore_schema::reply::FollowerState;

/// Followers of a server, by connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    by_connection: BTreeMap<u64, FollowerState>,
}

/// Entry of a connection among the followers, until the connection ends.
#[derive(Debug)]
pub(crate) struct FollowerPlace {
    followers: Followers,
    at: u64,
}

impl Followers {
    /// Returns the entry for a connection.
    pub(crate) fn enter(&self) -> FollowerPlace {
        let mut state = self.lock();
        let at = state.next;
        state.next += 1;
        FollowerPlace { followers: self.clone(), at }
    }

    /// Returns the followers that serve a version, up to the limit of a description.
    pub(crate) fn list(&self) -> Vec<FollowerState> {
        let state = self.lock();
        let serving = state.by_connection.values().filter(|it| it.instance != 0);
        serving.copied().take(FOLLOWERS_MAX).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().ignore_poison()
    }
}

impl FollowerPlace {
    /// Records the follower's report.
    pub(crate) fn say(&self, follower: FollowerState) {
        self.followers.lock().by_connection.insert(self.at, follower);
    }
}

impl Drop for FollowerPlace {
    fn drop(&mut self) {
        self.followers.lock().by_connection.remove(&self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_listed_from_its_first_version_to_the_end_of_its_connection() {
        let (followers, state) = (Followers::default(), FollowerState::default());
        let [one, other] = [followers.enter(), followers.enter()];
        one.say(FollowerState { instance: 0, ..state });
        other.say(FollowerState { instance: 8, part: 3, ..state });
        assert_eq!(followers.list(), [FollowerState { instance: 8, part: 3, ..state }]);
        other.say(FollowerState { instance: 8, part: 4, ..state });
        assert_eq!(followers.list(), [FollowerState { instance: 8, part: 4, ..state }]);
        drop(other);
        assert!(followers.list().is_empty());
        one.say(FollowerState { instance: 7, ..state });
        assert_eq!(followers.list().len(), 1);
    }
}
