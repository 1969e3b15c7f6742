// What every function of cleave_c.h has around its body.
#pragma once
#include <functional>
#include <string>

#include "core/error.h"

namespace cleave::capi {

// Runs the body; what it throws becomes an exit code, and its words are cleave_error()'s of this thread.
int call(const std::function<void()>& body);

// A text that the caller frees with cleave_free_text.
char* handed_over(const std::string& text);

// What a caller hands over; Error(internal) names what is missing.
template <class T>
T& given(T* pointer, const char* what) {
  CHECK(pointer, "{} is null", what);
  return *pointer;
}

}  // namespace cleave::capi
