//! Updates through real server processes: killed without a warning, stopped under load, and from
//! the command line.

mod command_line;
mod killed;
