//! What `?` shows.

/// Keys and columns; fits a terminal of 80 columns and 24 lines.
pub const TEXT: [&str; 19] = [
    "  t TOTAL W   power of CPUs, memory and GPUs; rows are ordered by it at first",
    "  w CPU W     power of CPUs and memory, where there are GPUs",
    "  g GPU W     power of GPUs",
    "  c CPU%      CPU time, in percent of one CPU",
    "  e Wh        energy since the agent started (1 Wh = 3600 J)",
    "  n NAME      from A to Z",
    "",
    "  /           search names: Enter keeps the search, Esc ends it",
    "  + -         one level more, one level less",
    "  z           show idle rows too, or hide them again",
    "  p           processes in place of workloads (the agent must export them)",
    "  arrows, PgUp, PgDn, Home, End   scroll",
    "  ? Esc       leave this text",
    "  q           quit",
    "",
    "The figures of a row are those of all that is in it: a namespace is the sum",
    "of its pods. Top rows, idle power and unattributed power make up the node.",
    "Watts are what work adds to idle power, which belongs to nobody.",
    "docs/accuracy.md says how far to trust them.",
];
