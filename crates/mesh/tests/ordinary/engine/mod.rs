//! Engines talking to each other: what single steps of theirs lead to. Whole jobs and their troubles run in `sim/`.

mod asks;
mod ended;
mod groups;
mod handles;
mod joins;
mod leaves;
mod meshes;
mod stops;
