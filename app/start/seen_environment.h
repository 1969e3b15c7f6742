// `cleave report --env`: values of the variables that launchers and clusters set.
#pragma once

namespace cleave::app {

// Prints every variable that a launcher or cluster sets, with secrets masked, and the resulting
// rank and launch plan, or their error. Returns the exit code, 0.
int report_environment(bool as_json);

}  // namespace cleave::app
