// Secrets of a job: what a rank knows and a stranger does not.
#pragma once
#include <string>
#include <string_view>

namespace cleave::comm {

// 128 random bits in hexadecimal.
std::string random_secret();

// Takes the same time wherever the first difference is.
bool same_secret(std::string_view a, std::string_view b);

// A secret for the ranks of one host that were given none: rank 0 makes it, and the others find it by the
// port, in a file that only their user can read.
class HostSecret {
 public:
  // Replaces what an earlier job may have left. An empty secret where no folder can be written.
  static HostSecret make(int port);
  // What make() wrote last on this host for this user and port; empty where there is nothing.
  static std::string find(int port);

  HostSecret() = default;
  HostSecret(HostSecret&& other) noexcept;
  HostSecret& operator=(HostSecret&& other) noexcept;
  ~HostSecret();  // removes the file unless it is a later job's

  const std::string& value() const { return value_; }

 private:
  std::string path_, value_;
};

}  // namespace cleave::comm
