//! How models write reasoning and tool calls: which format a chat template speaks, its text split into answer, reasoning and
//! calls as it streams, and the grammar that enforces it. Absent on purpose: tokens, models, what an API calls these things.
