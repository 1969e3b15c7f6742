// Streams, events and graphs. Work runs when a thread waits for it, or after some time without
// calls. Its order is random and follows only the order within streams, events, values of words,
// and graph edges, so that a missing one changes numbers. With CUDA_INTERPRETER_CHANNELS=n, the
// streams of a GPU share n channels at random. Work in a channel runs in the order of submission: a
// wait delays later work of other streams in the channel.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/warp.h"

namespace interpreter {

using Time = std::chrono::steady_clock::time_point;

// Work of a stream or graph. Exactly one of `run` (now, on the thread of the GPU), `call` (on its
// own thread, because it may wait for other streams) and `ready` (waits until it is true).
struct Task {
  std::string what;
  std::function<void(std::mt19937_64&)> run;
  std::function<void()> call;
  std::function<bool()> ready;
  const void* like = nullptr;  // graphs with equal tasks may update each other
  double milliseconds = 0.01;  // nominal time, so that measurements are repeatable
};

struct Node {
  Task task;
  std::vector<size_t> after;
};
using Nodes = std::vector<Node>;

// A recorded place in a stream.
struct Point {
  bool reached = false;
  double when = 0;  // by the stream's clock
};

struct Stream;
using Channel = std::deque<Stream*>;  // streams of its tasks, in order of submission

// Streams with work that is collected for a graph.
struct Capture {
  std::shared_ptr<Nodes> nodes = std::make_shared<Nodes>();
  Stream* first = nullptr;
  std::vector<Stream*> streams;
  bool broken = false;
};

struct Event {
  int device = 0;
  std::shared_ptr<Point> point = std::make_shared<Point>(Point{true, 0});
  std::shared_ptr<Capture> capture;  // was recorded in it, after these nodes
  std::vector<size_t> behind;
};

struct Stream {
  int device = 0, number = 0;
  std::deque<Task> tasks;
  std::shared_ptr<Channel> channel;
  bool busy = false, closed = false;
  uint64_t rank = 0;  // the largest goes first
  double clock = 0;   // milliseconds of its completed work
  std::shared_ptr<Capture> capture;
  std::vector<size_t> ends;  // of its captured work
  // A graph at the head of the stream, with its remaining work.
  struct Run {
    std::shared_ptr<const Nodes> nodes;
    std::vector<size_t> waits_for;
    std::vector<char> begun;
    size_t left;
  };
  std::unique_ptr<Run> graph;
  std::deque<std::shared_ptr<const Nodes>> graphs;  // of tasks that are graphs
};

class Streams {
 public:
  Streams();
  Stream* make(int device);
  void close(Stream* s);
  Stream* legacy(int device);  // the default stream

  // These functions throw Defect if the call is not allowed.
  void give(Stream* s, Task task);
  void record(Event& e, Stream* s);
  void wait(Stream* s, const Event& e);
  void give_graph(Stream* s, std::shared_ptr<const Nodes> nodes);
  void begin_capture(Stream* s);
  std::shared_ptr<Nodes> end_capture(Stream* s);

  // Blocks until all work is complete; false if the GPU is lost.
  bool finish(Stream* s);
  bool finish(const std::shared_ptr<Point>& p);
  bool finish_device(int device);
  bool reached(const Point& p);  // or moves it a little closer
  bool idle(Stream* s);

  const std::string& lost() const { return lost_; }  // reason; empty without a defect
  void forgive() { lost_.clear(); }

 private:
  struct Choice {
    Stream* stream;
    size_t node;
    bool graph;
  };
  void make_room(Stream* s);
  void play();
  std::shared_ptr<Channel> draw_channel(int device);
  void put(Stream* s, Task task);
  std::vector<Choice> choices();
  void begin(const Choice& c, std::unique_lock<std::mutex>& lock);
  void done(Stream* s, size_t node, bool graph);
  bool await(const std::function<bool()>& reached);
  void lose(const std::string& why);
  [[noreturn]] void report_deadlock();
  bool empty() const;
  bool wanted() const { return !awaited_.empty() || pokes_ > 0; }

  std::mutex mutex_;
  std::condition_variable work_, progress_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Channel>> channels_;  // by GPU and number, if shared
  std::vector<Stream*> legacy_;
  std::mt19937_64 random_;                             // requires the lock
  std::mt19937_64 inside_;                             // of the GPU's thread
  std::vector<const std::function<bool()>*> awaited_;  // conditions of waiting threads
  int pokes_ = 0, calls_ = 0;
  Time asked_{}, moved_{};
  std::string lost_;
  int made_ = 0;
};

Streams& streams();

}  // namespace interpreter
