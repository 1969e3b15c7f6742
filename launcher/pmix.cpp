#include "launcher/pmix.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <thread>
#include <type_traits>

#include "comm/rendezvous/secret.h"
#include "core/printable.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

constexpr const char* kSecretKey = "cleave-secret";

// The part of the PMIx standard's C interface (versions 2 to 5) that the exchange needs.
struct Process {
  char space[256];
  uint32_t rank;
};
struct Value {
  uint16_t type;
  union alignas(8) {
    const char* string;
    std::byte largest[64];  // at least the size of the standard's union
  };
};
constexpr uint16_t kString = 3;
constexpr uint8_t kGlobal = 3;

struct Library {
  int (*init)(Process*, const void* infos, size_t) = nullptr;
  int (*put)(uint8_t scope, const char* key, const Value*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const Process*, size_t, const void* infos, size_t) = nullptr;
  int (*get)(const Process*, const char* key, const void* infos, size_t, Value**) = nullptr;
  int (*finalize)(const void* infos, size_t) = nullptr;
};

// Sets `why` if the library or a function is missing. It stays loaded, because it may own threads.
Library load(const std::string& file, std::string& why) {
  Library l;
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    why = fmt::format("PMIx was not loaded ({})", error ? error : file);
    return l;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function && why.empty()) why = fmt::format("{} has no {}", file, name);
  };
  find("PMIx_Init", l.init), find("PMIx_Put", l.put), find("PMIx_Commit", l.commit);
  find("PMIx_Fence", l.fence), find("PMIx_Get", l.get), find("PMIx_Finalize", l.finalize);
  return l;
}

struct Answer {
  std::string secret, why;
};

Answer exchange(const Library& pmix) {
  Answer answer;
  const auto fails = [&](const char* call, int status) {
    if (status != 0 && answer.why.empty()) answer.why = fmt::format("{} failed with {}", call, status);
    return status != 0;
  };
  Process self{};
  if (fails("PMIx_Init", pmix.init(&self, nullptr, 0))) return answer;
  std::string secret;
  if (self.rank == 0) {
    secret = comm::random_secret();
    Value value{};
    value.type = kString, value.string = secret.c_str();
    fails("PMIx_Put", pmix.put(kGlobal, kSecretKey, &value));
  }
  fails("PMIx_Commit", pmix.commit());
  fails("PMIx_Fence", pmix.fence(nullptr, 0, nullptr, 0));
  if (self.rank != 0 && answer.why.empty()) {
    Process first = self;
    first.rank = 0;
    Value* value = nullptr;  // a few bytes that only the library could free
    if (!fails("PMIx_Get", pmix.get(&first, kSecretKey, nullptr, 0, &value))) {
      if (value && value->type == kString && value->string)
        secret = value->string;
      else
        answer.why = "PMIx_Get returned no string";
    }
  }
  fails("PMIx_Finalize", pmix.finalize(nullptr, 0));
  if (answer.why.empty()) answer.secret = secret;
  return answer;
}

}  // namespace

std::string secret_by_pmix(const Environment& env, comm::Clock::time_point deadline, std::string& why,
                           const std::string& library) {
  const Variables v(env);
  if (!v.missing({"PMIX_NAMESPACE", "PMIX_RANK"}).empty()) return {};
  const Library pmix = load(library, why);
  if (!why.empty()) return {};
  // The library's calls have no deadline of their own.
  std::promise<Answer> promise;
  std::future<Answer> future = promise.get_future();
  std::thread([pmix, promise = std::move(promise)]() mutable { promise.set_value(exchange(pmix)); }).detach();
  if (future.wait_until(deadline) != std::future_status::ready) {
    why = "PMIx: ranks are missing at the deadline";
    return {};
  }
  const Answer answer = future.get();
  if (!answer.why.empty()) why = "PMIx: " + printable(answer.why);
  return answer.secret;
}

}  // namespace cleave::launcher
