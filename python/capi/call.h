// Common parts of all functions of cleave_c.h.
#pragma once
#include <functional>
#include <string>

#include "core/error.h"

namespace cleave::capi {

// Runs the body and returns 0, or the exit code of its exception; cleave_error() then returns the
// message on this thread.
int call(const std::function<void()>& body);

// Copies a text for the caller, who frees it with cleave_free_text.
char* handed_over(const std::string& text);

// Returns an argument of the caller; Error(internal) names it if it is null.
template <class T>
T& given(T* pointer, const char* what) {
  CHECK(pointer, "{} is null", what);
  return *pointer;
}

}  // namespace cleave::capi
