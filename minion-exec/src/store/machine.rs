//! Which machine this is, so that a store on a cloned or moved disk is found out.

use std::io;
use std::path::Path;

use gw_wire::id::Sha256Hex;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// Where systemd and dbus keep the machine's id (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// Where Linux shows the machine's DMI UUID, to root.
const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";

/// What identifies a machine. Hashes only: machine-id(5) is to be kept from strangers, and a store may be
/// copied for an inquiry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    machine_id: Option<Sha256Hex>,
    product_uuid: Option<Sha256Hex>,
}

impl Machine {
    /// This machine. What it does not have, or not show to this user, is none.
    pub fn this() -> Result<Self, StoreError> {
        Self::at(MACHINE_ID.as_ref(), PRODUCT_UUID.as_ref())
    }

    /// The machine that these two files describe.
    pub fn at(machine_id: &Path, product_uuid: &Path) -> Result<Self, StoreError> {
        Ok(Machine {
            machine_id: hash_of(machine_id)?,
            product_uuid: hash_of(product_uuid)?,
        })
    }
}

fn hash_of(path: &Path) -> Result<Option<Sha256Hex>, StoreError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(source) => {
            return Err(StoreError::Io {
                what: "read",
                path: path.to_owned(),
                source,
            });
        }
    };
    let text = text.trim();
    Ok((!text.is_empty()).then(|| Sha256Hex::of(text.as_bytes())))
}
