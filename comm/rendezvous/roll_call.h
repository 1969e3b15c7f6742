// Ranks learn the texts of all ranks from the job's store. Rank 0 collects them and publishes blocks of 1024,
// so a rank asks once per block; with one question per rank and rank, 1024 ranks would ask a million times.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace cleave::comm {

// The store: set() a key, and wait for a key that another rank sets.
struct Store {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> await;
};

// Returns the texts by rank; texts are at most 512 bytes long. Collective. Throws what `await` throws, and
// Error(internal) for a block that rank 0 did not write.
std::vector<std::string> roll_call(const Store& store, int rank, int world, const std::string& own);

}  // namespace cleave::comm
