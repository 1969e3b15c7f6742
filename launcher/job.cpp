#include "launcher/job.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "comm/from_peer.h"
#include "comm/gpu_transport.h"
#include "comm/rendezvous/meeting_point.h"
#include "config_schema/summary.h"
#include "core/build.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/version.h"
#include "core/warnings.h"
#include "device/gpu_problems.h"
#include "device/loading.h"
#include "device/team.h"
#include "launcher/discovery.h"
#include "launcher/exit_code.h"
#include "launcher/machine.h"
#include "launcher/network.h"
#include "launcher/notice.h"
#include "launcher/passed_signals.h"
#include "launcher/pmi.h"
#include "launcher/rank_lines.h"

namespace cleave::launcher {
namespace {

// `stop` is the signal that asked for a stop at `stop_ms`, or kNotice. The first signal after a notice does
// not kill, because a scheduler may send it while the job saves.
constexpr std::sig_atomic_t kNotice = -1;
volatile std::sig_atomic_t stop = 0;
std::atomic<bool> catches = false;  // catch_signals() was called
std::atomic<int64_t> stop_ms = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);  // required in signal handlers
// True if this process prints an answer to a signal; a launcher of Cleave answers for its ranks, and
// otherwise the first rank for all.
std::atomic<bool> answers = false;
std::string_view answer_to_stop;

// Exit code and message of this rank after a failure; never destroyed, because a signal may come at any time.
struct LastWords {
  int exit = 0;
  std::string said;
};
LastWords& last_words = *new LastWords;

void answer(std::string_view text) {
  if (answers && write(STDERR_FILENO, text.data(), text.size()) < 0) answers = false;
}

void on_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ms = int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  if (stop == signal && signal != SIGINT && ms - stop_ms < kSameWish.count()) return;
  if (stop > 0) {
    answer("\nkilled by a second signal; the work since the last save is lost\n");
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  stop_ms = ms;
  stop = signal;
  answer(answer_to_stop);
}

// A launcher ends ranks that take long to leave after a failure; it must get the exit code of the failed one.
void end_by_last_words(int) {
  if (write(STDERR_FILENO, last_words.said.data(), last_words.said.size()) < 0) _exit(last_words.exit);
  _exit(last_words.exit);
}

bool launched_by_us() { return !environment_value("CLEAVE_LAUNCHED").empty(); }

constexpr std::string_view kWarning = "warning: ";

// Every rank says it to a launcher, which shows the line once and then waits for no other rank to save. On a
// terminal it begins below the ^C.
constexpr std::string_view kEarlyEnd = "\nstopped on request before the training started\n";
static_assert(kEarlyEnd.substr(1, kEarlyEnd.size() - 2) == kStoppedEarly);
std::string_view early_end = kEarlyEnd;

void end_before_training(int) {
  if (write(STDERR_FILENO, early_end.data(), early_end.size()) < 0) _exit(int(Exit::stopped));
  _exit(int(Exit::stopped));
}

// Raises the limit of open files to its maximum; a rank that reached it later could not even report it.
void require_open_files(const comm::RankInfo& info) {
  const rlim_t wanted = info.world == 1 ? 16 : rlim_t(32 + (info.rank == 0 ? info.world : 0));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  require(limit.rlim_max >= wanted, Exit::usage,
          "open files: the limit is too small (got {}, expected at least {}); raise it with ulimit -n",
          limit.rlim_max, wanted);
}

// Removes secrets from the environment, so that child processes, such as data loader workers, do not inherit
// them. Keeps the token for a later job of this process.
void keep_from_children(comm::RankInfo& info) {
  static std::string& token = *new std::string;
  if (!info.token.empty()) token = info.token;
  info.token = token;
  for (const char* name : {"CLEAVE_TOKEN", "CLEAVE_MEETING_PORT", "CLEAVE_MEETING_FD", "CLEAVE_BOARD"})
    unsetenv(name);
}

// A rank without a usable device tells the others, if they arrive so soon.
constexpr std::chrono::seconds kTellsOthers(10);

}  // namespace

// Not destroyed with the job: a signal may read it at any time. Kept where leak checkers find it.
comm::FlightRing& Job::lasting_ring() {
  static std::mutex mutex;
  static auto& rings = *new std::vector<std::unique_ptr<comm::FlightRing>>;
  const std::lock_guard lock(mutex);
  return *rings.emplace_back(std::make_unique<comm::FlightRing>());
}

Job::Job(const JobOptions& given) : options_(given) {
  check_environment(environ);
  JobOptions& options = options_;
  if (const std::string way = environment_value("CLEAVE_GPU_TRANSPORT");
      options.gpu_transport == "auto" && !way.empty())
    options.gpu_transport = way;
  options.share_gpu = options.share_gpu || !environment_value("CLEAVE_SHARE_GPU").empty();
  const Discovery found = discover_ranks(environment_of_process());
  info_ = found.info;
  if (const std::string place = environment_value("CLEAVE_BOARD"); !place.empty()) try {
      board_ = std::make_unique<Board>(place, info_.rank, info_.world);
      meeting_ = comm::inherited_listener(info_.meeting_fd, info_.meeting_port);
    } catch (const Error&) {  // the system does not share memory of other processes
    }
  keep_from_children(info_);
  info_.port_is_taken = info_.port_is_taken || options.port_is_taken;
  answers = first() && !launched_by_us();
  flight_file_ = FlightFile::install(flights_, {info_.rank, info_.world, info_.attempt, info_.job_id});
  require_open_files(info_);
  if (first())
    for (const std::string& w : found.warnings) warn("{}", w);
  require(options.local_rank < 0 || options.local_rank == info_.local_rank, Exit::usage,
          "--local_rank: conflicts with the launcher (got {}, but {} set {}); leave the option out",
          options.local_rank, info_.launched_by, info_.local_rank);
  set_cuda_environment(info_.world > 1 ? RanksHere::several : RanksHere::one);
  choose_device();
  if (const std::string problem = problem_of_channels(); first() && device().is_cuda() && !problem.empty())
    warn("{}", problem);
  if (first() && device().is_cuda() && info_.world > 1)
    if (const std::string problem = problem_of_loading(); !problem.empty()) warn("{}", problem);
  threads_ = threads_of_process(options.threads, info_.local_size);
  set_team_threads(threads_.threads);
}

void Job::choose_device() {
  try {
    const CudaStatus status = options_.device == "cpu" ? CudaStatus{} : cuda_status();
    cuda_version_ = status.runtime;
    const Device chosen = cleave::choose_device(options_.device, info_.local_rank, status);
    device_ = {.device = chosen,
               .shares = options_.share_gpu || options_.device.starts_with("cuda:"),
               .why_cpu = status.problem};
    if (chosen.is_cuda()) {
      device_.gpu = status.gpus[size_t(chosen.index)];
      if (const std::string note = slice_note(device_.gpu, chosen); first() && !note.empty())
        warn("{}", note);
    } else if (build::cuda && first() && !status.problem.empty()) {
      std::fprintf(stderr, "device: cpu (%s)\n", status.problem.c_str());
    }
  } catch (const Error&) {
    if (info_.world == 1) throw;
    device_failure_ = std::current_exception();
    try {
      meet(kTellsOthers, kTellsOthers);
    } catch (const comm::AgreedError&) {
      if (world_) world_->leave();
      // A launcher ends the job when the first rank ends, and names it.
      if (!first()) std::this_thread::sleep_for(std::chrono::seconds(1));
      throw;
    } catch (const Error&) {  // the others are late or gone
    }
    std::rethrow_exception(device_failure_);
  }
}

void Job::meet(std::chrono::milliseconds rendezvous_timeout, std::chrono::seconds timeout) {
  if (flight_file_) FlightFile::settle();
  comm::ConnectOptions o;
  o.transport = comm::parse_transport(options_.transport);
  o.comm.timeout = timeout;
  o.comm.flights = &flights_;
  o.on_loss = [this](const std::string& reason) {
    if (flight_file_ && !can_join_again()) flight_file_->lost(reason);
  };
  if (board_) {
    info_.attempt = std::max(info_.attempt, board_->attempt());
    o.outdated = [this] { return board_->attempt() != info_.attempt; };
    if (meeting_) info_.meeting_fd = fcntl(meeting_.fd(), F_DUPFD_CLOEXEC, 0);
  }
  o.rendezvous_timeout = rendezvous_timeout;
  if (info_.token.empty() && options_.secret_by_pmi && info_.nodes > 1) {
    std::string why;
    info_.token = secret_by_pmi(environment_of_process(), comm::Clock::now() + o.rendezvous_timeout, why);
    if (!why.empty()) warn("{}", why);
  }
  o.on_wait = [](const std::string& text) {
    if (text.starts_with(kWarning))
      print_warning(text.substr(kWarning.size()));
    else
      std::fprintf(stderr, "%s\n", text.c_str());
  };
  connecting_ = true;
  world_ = cleave::comm::connect(info_, o);
  connecting_ = false;
  info_ = world_->info();
  if (const NoticeSources sources = notice_sources(environment_of_process());
      info_.local_rank == 0 && sources.any() && !notices_)
    notices_ = std::make_unique<NoticeWatch>(sources, stop_for_notice);
  cleave::comm::together(world(), Exit::usage, [this] {
    if (device_failure_) std::rethrow_exception(device_failure_);
  });
}

config::ReadOptions Job::read_options(bool strict, const config::AutoValues& values) const {
  return {.strict = strict,
          .world_size = info_.world,
          .world_origin =
              info_.launched_by == comm::RankInfo{}.launched_by
                  ? "a single rank, without launcher variables"
                  : fmt::format("{} rank{}, {}", info_.world, info_.world == 1 ? "" : "s", info_.launched_by),
          .auto_values = values};
}

Job::~Job() = default;

config::ReadResult Job::read_config(const std::string& path, const config::ReadOptions& options) const {
  return accepted(config::read_ds_config_file(path, options), path);
}

config::ReadResult Job::read_config_text(std::string_view text, const std::string& name) const {
  return accepted(config::read_ds_config(text, name, read_options()), name);
}

config::ReadResult Job::accepted(config::ReadResult r, const std::string& name) const {
  // Cleave's launcher prints an error of several ranks once; this may be the only rank with the error.
  if (!first() && launched_by_us())
    std::erase_if(r.problems, [](const config::Problem& p) { return p.warning; });
  for (const config::Problem& p : r.problems)
    if (p.warning && first()) note_warning(config::format(p));
  if (first() || launched_by_us()) std::fputs(config::format(r.problems).c_str(), stderr);
  require(r.ok(), Exit::usage, "{}: the ds_config has {}; correct the file, nothing was started", name,
          config::name_errors(r.problems));
  return r;
}

// Ranks may differ in GPU index and number of threads.
comm::Facts Job::own_facts() const {
  comm::Facts facts = {{"the version of cleave", std::string(build::version)},
                       {"--transport", options_.transport},
                       {"--gpu_transport", options_.gpu_transport},
                       {"--share_gpu", options_.share_gpu ? "on" : "off"}};
  facts.insert(facts.end(), options_.facts.begin(), options_.facts.end());
  return facts;
}

comm::Communicator& Job::connect(const config::DsConfig& config, const comm::Facts& facts) {
  for (;;) try {
      connect_once(config, facts);
      return world();
    } catch (const Error&) {
      // Ranks may die while they meet.
      if (!board_ || board_->attempt() == info_.attempt || board_->attempt() == Board::kEnded) throw;
      world_.reset();
    }
}

void Job::join_again(const config::DsConfig& config, const comm::Facts& facts, const std::string& reason) {
  if (world_) world_->failed(reason, true);
  world_.reset();
  const int next = board_->wait_after(info_.attempt);
  require(next != Board::kEnded, Exit::rank_lost, "{}", reason);
  info_.attempt = next;
  connect(config, facts);
}

void Job::connect_once(const config::DsConfig& config, const comm::Facts& facts) {
  const std::chrono::seconds timeout(config.comm_timeout_s);
  const comm::GpuTransport between_gpus = comm::parse_gpu_transport(options_.gpu_transport);
  meet(std::min<std::chrono::milliseconds>(comm::ConnectOptions{}.rendezvous_timeout, timeout), timeout);
  comm::Facts all = own_facts();
  all.insert(all.end(), facts.begin(), facts.end());
  for (auto& value : config::compared_values(config)) all.push_back(std::move(value));
  comm::require_alike(world(), all);
  const comm::GpuRoute route = comm::connect_gpus(world(), device_, between_gpus);
  if (first() && !route.warning.empty()) warn("{}", route.warning);
  between_gpus_ = route.line;
  if (info_.nodes > 1 && route.way == comm::GpuTransport::nccl) warn_of_network();
}

// The checks of a trace's clocks are in cleave report only.
void Job::warn_of_network() {
  std::vector<NetworkProblem> problems;
  if (info_.local_rank == 0) problems = network_problems(network_of(), environment_of_process());
  std::erase_if(problems, [](const NetworkProblem& p) { return p.check == NetworkCheck::clock; });
  for (const std::string& warning : agreed_warnings(world(), problems, info_.nodes)) warn("{}", warning);
}

std::string Job::threads() const {
  return fmt::format("{} thread{} ({})", threads_.threads, threads_.threads == 1 ? "" : "s", threads_.why);
}

std::string Job::transport() const {
  return world_->transport() + (between_gpus_.empty() ? "" : "; " + between_gpus_);
}

int Job::run(const std::function<int()>& body) {
  const auto tell_others = [this](Exit exit, const char* reason) {
    keep_code(int(exit), fmt::format("error: rank {}: {}\n", info_.rank, reason));
    if (world_) world_->failed(reason, explains(int(exit)));
  };
  try {
    const int code = body();
    if (world_) world_->leave();
    return code;
  } catch (const comm::AgreedError& e) {
    if (world_) world_->leave();  // all ranks know the reason, so a lost connection tells them nothing
    if (!first()) return int(e.exit());
    throw;
  } catch (const Error& e) {
    tell_others(e.exit(), e.what());
    // One rank per host prints these errors, as elsewhere.
    const bool alike =
        (e.exit() == Exit::usage && !launched_by_us() && !connecting_) || e.exit() == Exit::memory;
    if (alike && info_.local_rank != 0) return int(e.exit());
    throw;
  } catch (const std::exception& e) {
    tell_others(dynamic_cast<const std::bad_alloc*>(&e) ? Exit::memory : Exit::internal, e.what());
    throw;
  }
}

bool Job::explains(int exit) const {
  return exit != int(Exit::rank_lost) && !(flight_file_ && flight_file_->has_lost());
}

void Job::record_flights_into(const std::string& folder) {
  if (flight_file_) flight_file_->write_into(folder);
}

void Job::keep_code(int exit, const std::string& said) {
  if (exit == int(Exit::rank_lost)) return;  // another rank is the cause
  last_words = {exit, said};
  std::signal(SIGTERM, end_by_last_words);
}

void Job::end(const std::string& reason, int exit) {
  if (reason.empty()) return world_->leave();
  keep_code(exit, "");
  world_->failed(reason, explains(exit));
}

void Job::together(Exit otherwise, const std::function<void()>& body) {
  cleave::comm::together(world(), otherwise, body);
}

bool Job::any(bool mine) {
  double votes = mine ? 1 : 0;
  Stream stream;
  world().all_reduce(Tensor(&votes, DType::fp64, {1}, MemoryKind::host), stream, {.what = "agreement"});
  return votes > 0;
}

std::string Job::from_first(const std::string& text) {
  std::array<char, 4096> bytes{};
  std::copy_n(text.begin(), std::min(text.size(), bytes.size() - 1), bytes.begin());
  Stream stream;
  world().broadcast(Tensor(bytes.data(), DType::uint8, {int64_t(bytes.size())}, MemoryKind::host), 0, stream,
                    {.what = "first rank's decision"});
  stream.synchronize();
  return comm::text_from_peer(bytes);
}

void Job::end_when_asked() {
  if (launched_by_us()) early_end.remove_prefix(1);
  sigset_t held;
  sigemptyset(&held);
  for (const int s : kStops) {
    std::signal(s, end_before_training);
    sigaddset(&held, s);
  }
  pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

void Job::catch_signals(WhenAsked then) {
  constexpr std::string_view kAnswers[] = {
      "\nstopping: finishing this step and saving. A second Ctrl-C or signal kills\n",
      "\nstop requested: the script decides when to stop. A second Ctrl-C or signal kills\n"};
  answer_to_stop = kAnswers[int(then)];
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kStops) sigaction(signal, &action, nullptr);
  catches = true;
}

void Job::stop_for_notice(const std::string& notice) {
  const std::string host = own_host_name();
  if (!catches)
    return warn("{}: {}; this program does not save on a stop request, and the job continues", host, notice);
  std::fprintf(stderr, "%s: %s; the job saves and stops\n", host.c_str(), notice.c_str());
  if (stop == 0) stop = kNotice;
}

bool Job::stop_requested() { return stop != 0; }

int run_job(const std::function<int(Job& job)>& body, const JobOptions& options) {
  return exit_code_of([&] {
    Job job(options);
    return job.run([&] { return body(job); });
  });
}

}  // namespace cleave::launcher
