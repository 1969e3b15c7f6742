#include "comm/rendezvous/rank_process.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "comm/rendezvous/wire.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/philox.h"
#include "core/printable.h"

namespace cleave::comm {
namespace {

std::string link_target(const char* path) {
  char text[128] = {};
  return readlink(path, text, sizeof(text) - 1) > 0 ? text : "";
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

std::string host_id() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + "|" + host_name() + "|" + link_target("/proc/self/ns/pid") + "|" +
         link_target("/proc/self/ns/net") + environment_value("CLEAVE_TEST_HOST");
}

int64_t host_number() { return int64_t(hash_name(host_id())); }

RankProcess this_process(const std::string& address) { return {host_name(), host_id(), address, getpid()}; }

std::string encode(const RankProcess& s) {
  wire::Writer w(wire::Type::value);
  return w.put(s.host).put(s.host_id).put(s.address).put(int32_t(s.pid)).put(int32_t(s.transport)).frame();
}

RankProcess decode_rank_process(const std::string& bytes) {
  wire::Reader r(std::string_view(bytes).substr(std::min(bytes.size(), sizeof(uint32_t) + 1)));
  RankProcess s;
  s.host = in_line(r.text());
  s.host_id = r.text();
  s.address = r.text();
  s.pid = r.number<int32_t>();
  s.transport = r.number<int32_t>();
  CHECK(r.good(), "rendezvous: a malformed description of a rank's process");
  return s;
}

}  // namespace cleave::comm
