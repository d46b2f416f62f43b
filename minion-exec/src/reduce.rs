//! From classes of results to an outcome.
//!
//! # nothing-raw
//! The module hands over numbers only: no state's name, comment, change or output ever reaches this
//! process, so none can leave it.

use gw_wire::receipt::{MAX_STATES, Outcome};
use gw_wire::reply::UnknownReason;
use serde::Deserialize;

/// What the state function gave back, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A mapping of results.
    Mapping,
    /// A list: a compile error or a conflict.
    List,
    /// It raised.
    Exception,
    /// Anything else.
    Other,
}

/// The result in classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The kind of the whole.
    pub shape: Shape,
    /// Results that are exactly True.
    #[serde(rename = "true")]
    pub passed: u32,
    /// Results that are exactly False.
    #[serde(rename = "false")]
    pub failed: u32,
    /// Results that are neither, or entries that are no result at all.
    pub other: u32,
    /// Low chunks of the run that have no result.
    pub missing: u32,
}

/// What the receipt will say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduced {
    /// How it ended.
    pub outcome: Outcome,
    /// States that passed.
    pub passed: u32,
    /// All states.
    pub total: u32,
    /// Why, if unknown.
    pub reason: Option<UnknownReason>,
}

impl Reduced {
    /// An unknown outcome of which no count is known.
    pub fn unknown(reason: UnknownReason) -> Self {
        Reduced {
            outcome: Outcome::Unknown,
            passed: 0,
            total: 0,
            reason: Some(reason),
        }
    }
}

/// Reduces a report.
///
/// Success: a nonempty mapping, every result exactly True, and no low chunk without a result. A result
/// that is neither True nor False makes the whole unknown, also beside a False. A False makes it failed;
/// chunks without a result are then the usual trace of `failhard`. Without a False they mean a run that
/// was cut short (`state.soft_kill`): unknown.
pub fn reduce(report: &Report) -> Reduced {
    let reason = match report.shape {
        Shape::Mapping => None,
        Shape::List | Shape::Other => Some(UnknownReason::NotAMapping),
        Shape::Exception => Some(UnknownReason::Exception),
    };
    if let Some(reason) = reason {
        return Reduced::unknown(reason);
    }
    let total = [report.passed, report.failed, report.other, report.missing]
        .into_iter()
        .try_fold(0u32, u32::checked_add)
        .filter(|total| *total <= MAX_STATES);
    let Some(total) = total else {
        return Reduced::unknown(UnknownReason::Malformed);
    };
    let (outcome, reason) = if report.passed + report.failed + report.other == 0 {
        (Outcome::Unknown, Some(UnknownReason::Empty))
    } else if report.other > 0 {
        (Outcome::Unknown, Some(UnknownReason::NotBoolean))
    } else if report.failed > 0 {
        (Outcome::Failed, None)
    } else if report.missing > 0 {
        (Outcome::Unknown, Some(UnknownReason::Incomplete))
    } else {
        (Outcome::Succeeded, None)
    };
    Reduced {
        outcome,
        passed: report.passed,
        total,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(passed: u32, failed: u32, other: u32, missing: u32) -> Report {
        Report {
            shape: Shape::Mapping,
            passed,
            failed,
            other,
            missing,
        }
    }

    #[test]
    fn the_reduction_table() {
        use Outcome::{Failed, Succeeded, Unknown};
        use UnknownReason::{Empty, Incomplete, Malformed, NotBoolean};
        for (report, outcome, passed, total, reason) in [
            (mapping(60, 0, 0, 0), Succeeded, 60, 60, None),
            (mapping(59, 1, 0, 0), Failed, 59, 60, None),
            (mapping(9, 1, 0, 50), Failed, 9, 60, None),
            (mapping(59, 0, 1, 0), Unknown, 59, 60, Some(NotBoolean)),
            (mapping(58, 1, 1, 0), Unknown, 58, 60, Some(NotBoolean)),
            (mapping(10, 0, 0, 50), Unknown, 10, 60, Some(Incomplete)),
            (mapping(0, 0, 0, 0), Unknown, 0, 0, Some(Empty)),
            (mapping(0, 0, 0, 60), Unknown, 0, 60, Some(Empty)),
            (mapping(u32::MAX, 1, 0, 0), Unknown, 0, 0, Some(Malformed)),
            (
                mapping(MAX_STATES + 1, 0, 0, 0),
                Unknown,
                0,
                0,
                Some(Malformed),
            ),
        ] {
            let want = Reduced {
                outcome,
                passed,
                total,
                reason,
            };
            assert_eq!(reduce(&report), want, "{report:?}");
        }
    }

    #[test]
    fn nothing_but_a_mapping_can_be_more_than_unknown() {
        for (shape, reason) in [
            (Shape::List, UnknownReason::NotAMapping),
            (Shape::Other, UnknownReason::NotAMapping),
            (Shape::Exception, UnknownReason::Exception),
        ] {
            let report = Report {
                shape,
                ..mapping(60, 0, 0, 0)
            };
            assert_eq!(reduce(&report), Reduced::unknown(reason));
        }
    }

    proptest! {
        #[test]
        fn success_means_all_true_and_nothing_else(p in 0u32..3, f in 0u32..3, o in 0u32..3, m in 0u32..3) {
            let success = reduce(&mapping(p, f, o, m)).outcome == Outcome::Succeeded;
            prop_assert_eq!(success, p > 0 && f == 0 && o == 0 && m == 0);
        }

        #[test]
        fn every_reduction_makes_a_receipt(p in any::<u32>(), f in 0u32..2_000_000, o in 0u32..3, m in any::<u32>()) {
            let reduced = reduce(&mapping(p, f, o, m));
            let binding = crate::testing::binding(1);
            prop_assert!(gw_wire::receipt::Receipt::new(binding, reduced.outcome, reduced.passed, reduced.total).is_ok());
        }
    }
}
