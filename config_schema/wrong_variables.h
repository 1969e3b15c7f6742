// Environment variables of this program (core/environment.h) before anything starts.
#pragma once

namespace cleave::config {

// Throws Error(usage) for an invalid value of a known variable, and for a name that nearly matches a known
// one. Others that begin with CLEAVE_ pass, because other programs may use the prefix. `environment` is
// null-terminated.
void refuse_wrong_variables(const char* const* environment);

}  // namespace cleave::config
