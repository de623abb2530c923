//! Who is there: the nodes of a job, what each of them is, and where they meet.

pub mod environment;
