//! Hosts of their own: a network that is cut and healed. Needs a Docker Engine; CI must have one.

use anyhow::Result;
use bed::Kind;
use gw_tests::{bed, docker, field, publish};

#[test]
fn a_minion_cut_off_in_mid_job_ends_it_and_its_receipt_comes_after_healing() -> Result<()> {
    if !docker() {
        return Ok(());
    }
    let bed = bed().backend(Kind::Docker).minions(2).up()?;
    bed.set_pillar(0, &[("pause_s", 5.into())])?;
    let sent = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    assert_eq!(field(&sent, "state"), "sent", "{sent:?}");
    while bed.executions(0)? == 0 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    bed.partition(0)?;
    // The other minion is not touched by it.
    assert_eq!(publish(&bed, 1, "volume_resize", &[])?.code, 0);
    std::thread::sleep(std::time::Duration::from_secs(8));
    let id = field(&sent, "request_id").to_owned();
    assert_eq!(field(&bed.gw_json(&["show", &id])?, "state"), "sent");
    bed.heal(0)?;
    let ended = publish(&bed, 0, "configure", &["--request-id", &id])?;
    assert_eq!(
        (ended.code, field(&ended, "state")),
        (0, "succeeded"),
        "{ended:?}"
    );
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}
