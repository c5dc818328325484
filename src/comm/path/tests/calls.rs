//! How many calls of the driver a collective takes, and what is refused.

use super::*;
