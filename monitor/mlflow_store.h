// Where an MLflow run is kept: a tracking server, or a folder that MLflow reads.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::monitor {

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t time_ms = 0;  // since 1970
  int64_t step = 0;
};

using MlflowText = std::map<std::string, std::string>;  // parameters or tags

// A request that failed. The caller may repeat it later if it may succeed then.
class MlflowFailure : public std::runtime_error {
 public:
  enum class Kind : uint8_t {
    unreachable,  // no answer in time
    busy,         // try again
    refused,      // this request is wrong; others may succeed
    lost,         // the run or the permission is missing: nothing will succeed
  };
  MlflowFailure(Kind its_kind, const std::string& text, double after_s = 0)
      : std::runtime_error(text), kind(its_kind), retry_after_s(after_s) {}
  Kind kind;
  double retry_after_s;  // as the server asks; 0: unspecified
};

class MlflowStore {
 public:
  virtual ~MlflowStore() = default;
  // Functions throw MlflowFailure. A repeated call with the same values has no further effect.

  // Creates the run, or continues the existing one. Call it before the others.
  virtual void open(const MlflowText& tags) = 0;
  // Sizes are at most those below.
  virtual void log(std::span<const MlflowMetric> metrics, const MlflowText& params,
                   const MlflowText& tags) = 0;
  virtual size_t most_metrics() const { return 1000; }
  virtual size_t most_params() const { return 100; }  // per call
  virtual size_t most_params_of_run() const { return 2000; }
  virtual size_t longest_param() const { return 6000; }  // bytes
  virtual void artifact(const std::string& name, const std::string& text) = 0;
  // status: FINISHED, FAILED or KILLED.
  virtual void finish(std::string_view status, int64_t time_ms) = 0;
};

inline int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace cleave::monitor
