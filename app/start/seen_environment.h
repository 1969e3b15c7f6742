// What the variables of launchers and clusters say to this program: `cleave report --env`.
#pragma once

namespace cleave::app {

// Prints every variable that a launcher or a cluster sets, secrets masked, and what follows from them for a
// rank and for a launcher, be it an error. Returns the exit code, 0.
int report_environment(bool as_json);

}  // namespace cleave::app
