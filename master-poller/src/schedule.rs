//! When the status of a job is asked for: after `first`, then after twice as long each time, up to `max`,
//! with jitter so that many jobs sent together are not asked about together.

use std::time::Duration;

use gw_wire::id::Jid;

/// The pauses between status calls.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// From the claim to the first call.
    pub first: Duration,
    /// The longest pause between two calls.
    pub max: Duration,
}

impl Schedule {
    /// How long to wait for the first call about a job that was claimed `age` ago. One that is overdue, as
    /// all are after a restart, waits for its jitter alone.
    pub fn until_first(&self, jid: Jid, age: Duration) -> Duration {
        let pause = self.pause(jid, 0);
        match pause.checked_sub(age) {
            Some(left) => left,
            None => self.first - pause,
        }
    }

    /// The pause before call number `attempt` (from 0) about `jid`: the nominal one less up to a quarter.
    /// The same job and attempt always give the same pause.
    pub fn pause(&self, jid: Jid, attempt: u32) -> Duration {
        let nominal = self
            .first
            .saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX))
            .min(self.max);
        nominal - nominal.mul_f64(0.25 * fraction(jid, attempt))
    }
}

/// A number from 0 to 1 out of the job and the attempt (FNV-1a; it need not be unpredictable).
fn fraction(jid: Jid, attempt: u32) -> f64 {
    let bytes = jid.as_str().bytes().chain(attempt.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    f64::from((hash >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overdue_jobs_do_not_all_ask_in_the_same_moment() {
        let schedule = Schedule {
            first: Duration::from_secs(30),
            max: Duration::from_secs(300),
        };
        let waits: std::collections::BTreeSet<Duration> = (0..100)
            .map(|n| Jid::parse(&format!("202611302209396{n:05}")).expect("a jid"))
            .map(|jid| schedule.until_first(jid, Duration::from_secs(10_000)))
            .collect();
        assert!(
            waits.len() > 90
                && waits
                    .iter()
                    .all(|wait| *wait <= Duration::from_millis(7501))
        );
    }

    proptest! {
        #[test]
        fn pauses_grow_to_the_limit_and_keep_three_quarters_of_the_nominal(attempt in 0u32..100) {
            let schedule = Schedule { first: Duration::from_secs(30), max: Duration::from_secs(300) };
            let jid = Jid::at(gw_wire::id::now());
            let nominal = Duration::from_secs(30 * 2u64.saturating_pow(attempt.min(20))).min(schedule.max);
            let pause = schedule.pause(jid, attempt);
            prop_assert!(pause <= nominal && pause >= nominal.mul_f64(0.749));
            prop_assert_eq!(pause, schedule.pause(jid, attempt));
        }
    }
}
