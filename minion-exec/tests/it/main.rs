//! The real `gw-exec`, spoken to as Salt's module does, with a gateway's reply port to answer to.

mod executor;
mod fence;
mod finish;
mod profiles;
mod receipts;
mod support;
