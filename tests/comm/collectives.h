// Collective tests for every transport. A transport's test file provides a function that runs a body on n
// ranks; the tests compare with sums in rank order, computed one element at a time.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace cleave::comm::test {

using Body = std::function<void(comm::Communicator&)>;
// Runs body on `size` ranks; rethrows a failure of any rank or reports it to gtest.
using RunRanks = std::function<void(int size, const Body& body, const comm::CommOptions& options)>;

struct Transport {
  std::string name;
  RunRanks run;
  std::vector<int> sizes;
  int64_t large_numel;      // several slots of the transport
  bool slow_calls = false;  // use fewer calls
};

void expect_collectives(const Transport& transport, DType dtype);
void expect_cuts_change_nothing(const Transport& transport);
void expect_pieces_of_shards(const Transport& transport);
void expect_max_of_numbers(const Transport& transport);
void expect_bytes_counted(const Transport& transport);
void expect_point_to_point(const Transport& transport);
void expect_splits(const Transport& transport);
void expect_streams(const Transport& transport);

// Throws unless the condition holds. Also works in a forked rank, which loses gtest failures.
#define EXPECT_ON_RANK(condition, ...)                                                                 \
  do {                                                                                                 \
    if (!(condition))                                                                                  \
      throw std::runtime_error(fmt::format("{}:{}: ", __FILE__, __LINE__) + fmt::format(__VA_ARGS__)); \
  } while (0)

// Message of the Error that `run` must throw.
template <class Run>
std::string error_of(Run run, Exit exit) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(int(e.exit()), int(exit)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace cleave::comm::test
