#include "tests/cuda_interpreter/streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/cuda_interpreter/settings.h"

namespace interpreter {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdle = 10ms;  // idle time before work runs
constexpr auto kLook = 200us;
constexpr double kInGraph = 0.75;  // share of its time for a task in a graph

Time now() { return std::chrono::steady_clock::now(); }

// Marks a task that is a graph.
const char kGraph = 0;

}  // namespace

Streams& streams() {
  static Streams* all = new Streams;  // runs until the process ends
  return *all;
}

Streams::Streams() : random_(uint64_t(setting("SEED", 1))), inside_(random_()) {
  std::thread([this] { play(); }).detach();
}

Stream* Streams::make(int device) {
  std::lock_guard lock(mutex_);
  if (made_ == 0) random_.seed(uint64_t(setting("SEED", 1)) + 1'000'003 * uint64_t(device));  // ranks differ
  streams_.push_back(std::make_unique<Stream>());
  Stream* s = streams_.back().get();
  s->device = device, s->number = ++made_, s->rank = random_();
  s->channel = draw_channel(device);
  return s;
}

std::shared_ptr<Channel> Streams::draw_channel(int device) {
  const auto of_gpu = uint64_t(setting("CHANNELS", 0));
  if (of_gpu == 0) return std::make_shared<Channel>();
  std::shared_ptr<Channel>& drawn = channels_[{device, random_() % of_gpu}];
  if (!drawn) drawn = std::make_shared<Channel>();
  return drawn;
}

void Streams::put(Stream* s, Task task) {
  s->tasks.push_back(std::move(task));
  s->channel->push_back(s);
  if (wanted()) work_.notify_all();
}

Stream* Streams::legacy(int device) {
  {
    std::lock_guard lock(mutex_);
    if (int(legacy_.size()) > device && legacy_[size_t(device)]) return legacy_[size_t(device)];
  }
  Stream* s = make(device);
  std::lock_guard lock(mutex_);
  legacy_.resize(std::max(legacy_.size(), size_t(device) + 1));
  return legacy_[size_t(device)] = s;
}

void Streams::close(Stream* s) {
  std::lock_guard lock(mutex_);
  s->closed = true;
  work_.notify_all();
}

// A launch blocks while its stream's queue is full.
void Streams::make_room(Stream* s) {
  constexpr size_t kQueue = 1024;
  {
    std::lock_guard lock(mutex_);
    if (s->capture || s->tasks.size() < kQueue) return;
  }
  await([s] { return s->tasks.size() < kQueue; });
}

void Streams::give(Stream* s, Task task) {
  make_room(s);
  std::lock_guard lock(mutex_);
  asked_ = now();
  if (s->capture) {
    s->capture->nodes->push_back({std::move(task), s->ends});
    s->ends = {s->capture->nodes->size() - 1};
    return;
  }
  put(s, std::move(task));
}

void Streams::give_graph(Stream* s, std::shared_ptr<const Nodes> nodes) {
  make_room(s);
  std::lock_guard lock(mutex_);
  if (s->capture) throw Defect("a graph is launched into a stream that is captured");
  asked_ = now();
  s->graphs.push_back(std::move(nodes));
  put(s, {"a graph", {}, {}, {}, &kGraph});
}

void Streams::record(Event& e, Stream* s) {
  make_room(s);
  std::lock_guard lock(mutex_);
  asked_ = now();
  e.capture = s->capture, e.behind = s->ends;
  if (s->capture) return;
  e.point = std::make_shared<Point>();
  put(s, {"an event",
          [this, p = e.point, s](std::mt19937_64&) {
            std::lock_guard inner(mutex_);
            p->reached = true, p->when = s->clock;
          },
          {},
          {},
          nullptr,
          0});
}

void Streams::wait(Stream* s, const Event& e) {
  make_room(s);
  std::lock_guard lock(mutex_);
  if (e.capture) {
    if (s->capture && s->capture != e.capture)
      throw Defect("captured work waits for an event of another capture");
    if (!s->capture) {
      if (!e.capture->first) throw Defect("a stream waits for an event of a capture that has ended");
      s->capture = e.capture, s->ends.clear();
      e.capture->streams.push_back(s);
    }
    for (const size_t node : e.behind)
      if (std::find(s->ends.begin(), s->ends.end(), node) == s->ends.end()) s->ends.push_back(node);
    return;
  }
  if (s->capture) {
    s->capture->broken = true;
    throw Defect("captured work waits for an event outside of the capture");
  }
  put(s, {"a wait for an event", {}, {}, [p = e.point] { return p->reached; }, nullptr});
}

void Streams::begin_capture(Stream* s) {
  std::lock_guard lock(mutex_);
  if (s->capture) throw Defect("a stream is captured twice");
  s->capture = std::make_shared<Capture>();
  s->capture->first = s, s->capture->streams = {s}, s->ends.clear();
}

std::shared_ptr<Nodes> Streams::end_capture(Stream* s) {
  std::lock_guard lock(mutex_);
  if (!s->capture || s->capture->first != s) throw Defect("a stream ends a capture that it did not begin");
  const std::shared_ptr<Capture> capture = s->capture;
  bool joined = true;
  std::vector<char> before(capture->nodes->size(), 0);  // the end of the first stream
  std::vector<size_t> open = s->ends;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (before[node]) continue;
    before[node] = 1;
    for (const size_t next : (*capture->nodes)[node].after) open.push_back(next);
  }
  for (const char b : before) joined = joined && b;
  for (Stream* each : capture->streams) each->capture.reset(), each->ends.clear();
  capture->first = nullptr;
  if (!joined) throw Defect("a capture ends while a stream was not joined");
  if (capture->broken) throw Defect("a capture was broken");
  return capture->nodes;
}

bool Streams::empty() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->tasks.empty(); });
}

// Returns the work that may begin now, in streams at the head of their channel. A stream with a
// running task has none; a graph may have several.
std::vector<Streams::Choice> Streams::choices() {
  std::vector<Choice> all;
  for (const auto& s : streams_) {
    if (s->tasks.empty() || s->channel->front() != s.get()) continue;
    if (s->tasks.front().like == &kGraph && !s->graph) {
      auto run = std::make_unique<Stream::Run>();
      run->nodes = s->graphs.front();
      for (const Node& node : *run->nodes) run->waits_for.push_back(node.after.size());
      run->begun.assign(run->nodes->size(), 0), run->left = run->nodes->size();
      s->graph = std::move(run);
    }
    if (s->graph) {
      if (s->graph->left == 0) all.push_back({s.get(), 0, false});
      for (size_t i = 0; i < s->graph->nodes->size(); ++i)
        if (!s->graph->begun[i] && s->graph->waits_for[i] == 0) {
          const Task& task = (*s->graph->nodes)[i].task;
          if (!task.ready || task.ready()) all.push_back({s.get(), i, true});
        }
    } else if (!s->busy && (!s->tasks.front().ready || s->tasks.front().ready())) {
      all.push_back({s.get(), 0, false});
    }
  }
  return all;
}

void Streams::done(Stream* s, size_t node, bool graph) {
  moved_ = now();
  if (graph) {
    --s->graph->left, s->clock += kInGraph * (*s->graph->nodes)[node].task.milliseconds;
    const Nodes& nodes = *s->graph->nodes;
    for (size_t i = 0; i < nodes.size(); ++i)
      s->graph->waits_for[i] -= size_t(std::count(nodes[i].after.begin(), nodes[i].after.end(), node));
  } else {
    s->busy = false, s->clock += s->tasks.front().milliseconds;
    if (s->graph) s->graph.reset(), s->graphs.pop_front();
    s->tasks.pop_front(), s->channel->pop_front();
  }
  // Waking threads for every task would take more time than the tasks.
  if (std::any_of(awaited_.begin(), awaited_.end(), [](const auto* reached) { return (*reached)(); }))
    progress_.notify_all();
  work_.notify_all();
}

void Streams::lose(const std::string& why) {
  if (!lost_.empty()) return;
  lost_ = why;
  std::fprintf(stderr, "cuda interpreter: %s\n", why.c_str());
}

void Streams::begin(const Choice& c, std::unique_lock<std::mutex>& lock) {
  Stream* s = c.stream;
  if (c.graph)
    s->graph->begun[c.node] = 1;
  else
    s->busy = true;
  const std::shared_ptr<const Nodes> nodes = c.graph ? s->graph->nodes : nullptr;
  const Task* task = c.graph ? &(*nodes)[c.node].task : &s->tasks.front();
  if (task->call && lost_.empty()) {
    ++calls_;
    std::thread([this, c, nodes, call = task->call] {
      call();
      std::lock_guard inner(mutex_);
      --calls_;
      done(c.stream, c.node, c.graph);
    }).detach();
    return;
  }
  if (task->run && (lost_.empty() || task->what == "an event")) {
    const auto run = task->run;
    lock.unlock();
    std::string wrong;
    try {
      run(inside_);
    } catch (const Defect& e) {
      wrong = e.what();
    }
    lock.lock();
    if (!wrong.empty()) lose(wrong);
  }
  done(s, c.node, c.graph);
}

// Emulates the GPU: the preferred stream changes at random, so that one may be far ahead of another
// or far late.
void Streams::play() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (empty() || !(wanted() || now() - asked_ > kIdle)) {
      work_.wait_for(lock, empty() ? kIdle : 1ms);
      continue;
    }
    const std::vector<Choice> all = choices();
    if (all.empty()) {
      pokes_ = 0;
      work_.wait_for(lock, kLook);
      continue;
    }
    if (random_() % 8 == 0)
      for (const auto& s : streams_) s->rank = random_();
    uint64_t best = 0;
    for (const Choice& c : all) best = std::max(best, c.stream->rank);
    std::vector<Choice> first;
    for (const Choice& c : all)
      if (c.stream->rank == best) first.push_back(c);
    if (pokes_ > 0) --pokes_;
    begin(first[random_() % first.size()], lock);
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const auto& s) { return s->closed && s->tasks.empty() && !s->busy; }),
                   streams_.end());
  }
}

void Streams::report_deadlock() {
  std::fprintf(stderr, "cuda interpreter: no work can continue, and a thread waits:\n");
  for (const auto& s : streams_)
    if (!s->tasks.empty())
      std::fprintf(stderr, "    stream %d on GPU %d: %s%s, %zu later tasks\n", s->number, s->device,
                   s->tasks.front().what.c_str(), s->busy ? " (running)" : "", s->tasks.size() - 1);
  std::abort();
}

bool Streams::await(const std::function<bool()>& reached) {
  static const auto most = std::chrono::seconds(setting("DEADLOCK_S", 120));
  std::unique_lock lock(mutex_);
  awaited_.push_back(&reached);
  moved_ = now();
  work_.notify_all();
  while (!reached()) {
    progress_.wait_for(lock, 100ms);
    if (calls_ == 0 && now() - moved_ > most) report_deadlock();
  }
  std::erase(awaited_, &reached);
  asked_ = now();
  return lost_.empty();
}

bool Streams::finish(Stream* s) {
  return await([s] { return s->tasks.empty(); });
}
bool Streams::finish(const std::shared_ptr<Point>& p) {
  return await([p] { return p->reached; });
}
bool Streams::finish_device(int device) {
  return await([this, device] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [device](const auto& s) { return s->device != device || s->tasks.empty(); });
  });
}

bool Streams::reached(const Point& p) {
  std::lock_guard lock(mutex_);
  if (p.reached) return true;
  ++pokes_;
  work_.notify_all();
  return false;
}

bool Streams::idle(Stream* s) {
  std::lock_guard lock(mutex_);
  if (s->tasks.empty()) return true;
  ++pokes_;
  work_.notify_all();
  return false;
}

}  // namespace interpreter
