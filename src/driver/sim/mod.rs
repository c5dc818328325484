//! The simulated machine: fills the same table of driver calls without a GPU.

use super::Table;

/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct ConfigError;
/// Powers the machine on with options such as "devices=4,memory=16GiB".
pub fn power_on(options: &str) -> Result<Table, ConfigError> {
    let _ = options;
    Ok(Table::default())
}
/// x
pub fn power_off() {}
/// x
pub fn check(_: &str) -> Result<(), ConfigError> { Ok(()) }
