//! The site's own profiles on a real minion: a file there names them, and nothing else does.

use anyhow::Result;
use bed::{Bed, Host};
use gw_tests::{bed, field, publish};

/// Gives minion 0 this file of profiles, of this mode.
fn profiles(bed: &Bed, content: &str, mode: &str) -> Result<()> {
    let path = bed.minion_root(0).join("etc/oduflow/job-profiles.json");
    let script = r#"umask 022; mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod "$3" "$1""#;
    let args = [&path.to_string_lossy(), content, mode];
    bed.sh(Host::Minion(0), script, &args).map(drop)
}

#[test]
fn a_sites_profile_runs_the_role_that_the_minions_file_names_and_no_other() -> Result<()> {
    // As long as the file has no such profile, and where it cannot be trusted, nothing is sent.
    let touched = "touched:\n  file.managed:\n    - name: {{ pillar.bed.target }}-site\n    - contents: x\n    - makedirs: True\n";
    let bed = bed()
        .minions(1)
        .state("roles/site/backup.sls", touched)
        .up()?;
    let absent = publish(&bed, 0, "backup", &[])?;
    assert_eq!(absent.code, 5, "{absent:?}");
    assert_eq!(absent.body["error"]["code"], "profile_absent", "{absent:?}");

    profiles(&bed, r#"{"backup": "roles.site.backup"}"#, "0646")?;
    let unsafe_file = publish(&bed, 0, "backup", &[])?;
    let code = &unsafe_file.body["error"]["code"];
    assert_eq!(code, "minion_incapable", "{unsafe_file:?}");
    assert!(unsafe_file.body.to_string().contains("site's profiles"));
    assert_eq!(bed.deliveries(0, "oduflow_job.run")?, Vec::<String>::new());

    profiles(&bed, r#"{"backup": "roles.site.backup"}"#, "0644")?;
    let ran = publish(&bed, 0, "backup", &[])?;
    assert_eq!(
        (ran.code, field(&ran, "state"), field(&ran, "profile")),
        (0, "succeeded", "backup"),
        "{ran:?}"
    );
    assert_eq!(
        (&ran.body["passed"], &ran.body["total"]),
        (&1.into(), &1.into())
    );
    let made = format!("{}/var/lib/bed/target-site", bed.minion_root(0).display());
    assert_eq!(
        bed.sh(Host::Minion(0), r#"cat "$1""#, &[&made])?.trim(),
        "x"
    );
    // It is the site's role that ran, and none of the standard ones.
    assert_eq!(bed.executions(0)?, 0);
    Ok(())
}
