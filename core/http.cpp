#include "core/http.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "core/error.h"

namespace cleave {
namespace {

// The part of libcurl's binary interface that is used here; its numbers never change.
constexpr int kGlobalAll = 3, kResponseCode = 0x200002;
enum Option : int {
  kTimeoutMs = 155,
  kConnectTimeoutMs = 156,
  kNoSignal = 99,
  kVerifyPeer = 64,
  kVerifyHost = 81,
  kHttpAuth = 107,
  kProtocols = 181,
  kBodyBytes = 60,
  kBody = 10015,
  kUrl = 10002,
  kLogin = 10005,
  kErrorText = 10010,
  kUserAgent = 10018,
  kHeaders = 10023,
  kMethod = 10036,
  kWriteTo = 10001,
  kHeaderTo = 10029,
  kWrite = 20011,
  kHeader = 20079,
};
constexpr long kBasic = 1, kHttpAndHttps = 3;
constexpr size_t kErrorBytes = 256, kMostBody = size_t{4} << 20;

struct Curl {
  int (*global_init)(long) = nullptr;
  void* (*init)() = nullptr;
  int (*setopt)(void*, int, ...) = nullptr;
  int (*perform)(void*) = nullptr;
  int (*getinfo)(void*, int, ...) = nullptr;
  void (*reset)(void*) = nullptr;
  void (*cleanup)(void*) = nullptr;
  const char* (*text_of)(int) = nullptr;
  void* (*append)(void*, const char*) = nullptr;
  void (*free_all)(void*) = nullptr;
  std::string problem;

  Curl() {
    // Debian and its relatives have a second build of the library with the same functions.
    void* handle = nullptr;
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
      if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      problem = "libcurl.so.4 cannot be loaded";
      return;
    }
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function && problem.empty()) problem = fmt::format("libcurl.so.4 has no {}", name);
    };
    find("curl_global_init", global_init), find("curl_easy_init", init), find("curl_easy_setopt", setopt);
    find("curl_easy_perform", perform), find("curl_easy_getinfo", getinfo), find("curl_easy_reset", reset);
    find("curl_easy_cleanup", cleanup), find("curl_easy_strerror", text_of);
    find("curl_slist_append", append), find("curl_slist_free_all", free_all);
    if (problem.empty() && global_init(kGlobalAll) != 0) problem = "libcurl.so.4 cannot be initialized";
  }
};

const Curl& curl() {
  static const Curl& library = *new Curl;  // never unloaded: a thread may still be inside
  return library;
}

size_t keep_body(const char* data, size_t size, size_t count, void* answer) {
  std::string& body = static_cast<HttpAnswer*>(answer)->body;
  if (body.size() + size * count > kMostBody) return 0;  // ends the transfer
  body.append(data, size * count);
  return size * count;
}

size_t keep_header(const char* data, size_t size, size_t count, void* answer) {
  constexpr std::string_view kName = "retry-after:";
  const std::string line(data, size * count);
  bool same = line.size() > kName.size();
  for (size_t i = 0; same && i < kName.size(); ++i)
    same = (line[i] >= 'A' && line[i] <= 'Z' ? char(line[i] - 'A' + 'a') : line[i]) == kName[i];
  if (same) static_cast<HttpAnswer*>(answer)->retry_after_s = retry_after(line.substr(kName.size()));
  return size * count;
}

}  // namespace

double retry_after(const std::string& value) {
  constexpr double kDay = 86400;
  const double seconds = std::strtod(value.c_str(), nullptr);
  return std::isfinite(seconds) ? std::clamp(seconds, 0.0, kDay) : 0;
}

Http::Http(const std::string& user) {
  require(curl().problem.empty(), Exit::usage,
          "{}: {}; install it (apt-get install libcurl4, or dnf install libcurl)", user, curl().problem);
  easy_ = curl().init();
  CHECK(easy_, "libcurl has no memory");
}

Http::~Http() {
  if (easy_) curl().cleanup(easy_);
}

HttpAnswer Http::send(const HttpRequest& request) {
  const Curl& c = curl();
  HttpAnswer answer;
  std::array<char, kErrorBytes> error{};
  void* headers = nullptr;
  // Without this header, libcurl waits for the server's consent before it sends a longer body.
  headers = c.append(headers, "Expect:");
  for (const std::string& header : request.headers) headers = c.append(headers, header.c_str());
  c.reset(easy_);
  c.setopt(easy_, kUrl, request.url.c_str());
  c.setopt(easy_, kProtocols, kHttpAndHttps);
  c.setopt(easy_, kNoSignal, 1L);
  c.setopt(easy_, kTimeoutMs, long(request.timeout.count()));
  c.setopt(easy_, kConnectTimeoutMs, long(request.timeout.count()));
  c.setopt(easy_, kErrorText, error.data());
  c.setopt(easy_, kUserAgent, "cleave");
  c.setopt(easy_, kHeaders, headers);
  c.setopt(easy_, kWrite, keep_body);
  c.setopt(easy_, kWriteTo, static_cast<void*>(&answer));
  c.setopt(easy_, kHeader, keep_header);
  c.setopt(easy_, kHeaderTo, static_cast<void*>(&answer));
  if (request.any_certificate) {
    c.setopt(easy_, kVerifyPeer, 0L);
    c.setopt(easy_, kVerifyHost, 0L);
  }
  if (!request.login.empty()) {
    c.setopt(easy_, kHttpAuth, kBasic);
    c.setopt(easy_, kLogin, request.login.c_str());
  }
  if (request.method != "GET") {
    c.setopt(easy_, kBody, request.body.c_str());
    c.setopt(easy_, kBodyBytes, long(request.body.size()));
    c.setopt(easy_, kMethod, request.method.c_str());
  }
  const int code = c.perform(easy_);
  long status = 0;
  if (code == 0)
    c.getinfo(easy_, kResponseCode, &status);
  else
    answer.problem = error[0] ? std::string(error.data()) : std::string(c.text_of(code));
  answer.status = int(status);
  if (code == 0 && status == 0) answer.problem = "the answer is not HTTP";
  c.free_all(headers);
  return answer;
}

}  // namespace cleave
