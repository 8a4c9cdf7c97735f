//! The sharded optimizer: ZeRO stages over any burn module
