// Streams, events and graphs. Work waits until somebody waits for it, or until nobody has asked for anything
// for a while; then it runs in an order that is drawn, subject to nothing but the order within streams,
// events, values of words, and the edges of graphs. So whoever forgets one of these gets other numbers.
// With CUDA_INTERPRETER_CHANNELS=n, the streams of a GPU share n channels, each stream one that is drawn, and
// what is in a channel is done in the order in which it was given: a wait holds up what other streams have
// behind it.
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

// Something that a stream or a graph does. Exactly one of `run` (now, by the thread that plays the GPU),
// `call` (on a thread of its own, because it may wait for other streams) and `ready` (waits until it is
// true).
struct Task {
  std::string what;
  std::function<void(std::mt19937_64&)> run;
  std::function<void()> call;
  std::function<bool()> ready;
  const void* like = nullptr;  // graphs whose tasks are alike may take each other's place
  double milliseconds = 0.01;  // that it is said to take, so that what is measured is the same every time
};

struct Node {
  Task task;
  std::vector<size_t> after;
};
using Nodes = std::vector<Node>;

// A place in a stream that was recorded.
struct Point {
  bool reached = false;
  double when = 0;  // by the stream's clock
};

struct Stream;
using Channel = std::deque<Stream*>;  // whose tasks are in it, as they were given

// Streams whose work is collected for a graph.
struct Capture {
  std::shared_ptr<Nodes> nodes = std::make_shared<Nodes>();
  Stream* first = nullptr;
  std::vector<Stream*> streams;
  bool broken = false;
};

struct Event {
  std::shared_ptr<Point> point = std::make_shared<Point>(Point{true, 0});
  std::shared_ptr<Capture> capture;  // was recorded in it, behind these nodes
  std::vector<size_t> behind;
};

struct Stream {
  int device = 0, number = 0;
  std::deque<Task> tasks;
  std::shared_ptr<Channel> channel;
  bool busy = false, closed = false;
  uint64_t rank = 0;  // the one with the largest goes first
  double clock = 0;   // milliseconds of what it has done
  std::shared_ptr<Capture> capture;
  std::vector<size_t> ends;  // of what it captured
  // A graph at the head of the stream: what of it has to be done yet.
  struct Run {
    std::shared_ptr<const Nodes> nodes;
    std::vector<size_t> waits_for;
    std::vector<char> begun;
    size_t left;
  };
  std::unique_ptr<Run> graph;
  std::deque<std::shared_ptr<const Nodes>> graphs;  // of the tasks that are graphs
};

class Streams {
 public:
  Streams();
  Stream* make(int device);
  void close(Stream* s);
  Stream* legacy(int device);  // the default stream

  // What follows throws Defect where it is not allowed.
  void give(Stream* s, Task task);
  void record(Event& e, Stream* s);
  void wait(Stream* s, const Event& e);
  void give_graph(Stream* s, std::shared_ptr<const Nodes> nodes);
  void begin_capture(Stream* s);
  std::shared_ptr<Nodes> end_capture(Stream* s);

  // Block until all of it is done; false when the GPU is lost.
  bool finish(Stream* s);
  bool finish(const std::shared_ptr<Point>& p);
  bool finish_device(int device);
  bool reached(const Point& p);  // or moves it a little closer
  bool idle(Stream* s);

  const std::string& lost() const { return lost_; }  // why; empty while all is well
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
  std::mt19937_64 random_;                             // under the lock
  std::mt19937_64 inside_;                             // of the thread that plays the GPU
  std::vector<const std::function<bool()>*> awaited_;  // of each thread that waits: whether it may go on
  int pokes_ = 0, calls_ = 0;
  Time asked_{}, moved_{};
  std::string lost_;
  int made_ = 0;
};

Streams& streams();

}  // namespace interpreter
