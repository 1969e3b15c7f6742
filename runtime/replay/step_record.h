// Record of one step of one rank: its calls with the other ranks, the bytes that it received, and checksums
// of the bytes that it sent. `cleave replay` computes the step again from it.
//
// A folder has calls.bin, which has the received bytes of all calls one after the other, and record.json,
// which describes the calls and the job. State before the step is a checkpoint of this rank alone, in the
// same folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/tapped.h"

namespace cleave::runtime {

// Bytes of calls.bin, and their checksum.
struct StoredBytes {
  int64_t at = 0, bytes = 0;
  uint64_t sum = 0;
};

struct RecordedCall {
  std::string group;  // PlannedGroup::path
  comm::Post post;
  std::string what, phase;
  int64_t sent_bytes = 0;
  uint64_t sent = 0;  // checksum of the bytes that the rank sent
  StoredBytes received;

  // "call 12, reduce_scatter of 66 fp32 (gradients of h.3) in group 'data', backward"
  std::string describe(size_t number) const;
};

// A checksum of one kind of a parameter's state on a rank.
struct StateSum {
  std::string kind, tensor;
  uint64_t sum = 0;
  bool operator==(const StateSum&) const = default;
};

struct StepRecord {
  // Calls of the engine's construction, and those of the step, in the order of the host thread.
  std::vector<RecordedCall> setup, step;
  std::vector<StateSum> after;  // state after the step
  nlohmann::json facts;         // of the job, for the program that makes the engine again

  static constexpr const char* kCalls = "calls.bin";
  static constexpr const char* kRecord = "record.json";
  static constexpr const char* kState = "state";  // tag of the checkpoint
};

// Writes record.json with a checksum. Throws Error(checkpoint).
void write_record(const std::filesystem::path& folder, const StepRecord& record);
// Throws Error(checkpoint) if the file is missing, of another version or damaged.
StepRecord read_record(const std::filesystem::path& folder);

}  // namespace cleave::runtime
