// Message of the usage error that a body must throw.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace cleave::launcher {

template <class Body>
std::string usage_error_of(Body body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    return e.what();
  }
  return "no error";
}

}  // namespace cleave::launcher
