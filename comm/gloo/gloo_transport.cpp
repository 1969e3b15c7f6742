#include "comm/gloo/gloo_transport.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/gloo/gloo_context.h"
#include "comm/gloo/gloo_exchange.h"
#include "comm/reduce.h"
#include "comm/rendezvous/data_listener.h"

namespace cleave::comm {
namespace {

// Data of a call is exchanged in pieces, which bounds the staging memory of a sum.
constexpr int64_t kPieceBytes = 4 << 20;

// State shared by all groups of a process.
struct GlooProcess {
  GlooProcess(const std::string& address, int ranks) : listener(address, ranks) {}
  DataListener listener;
  std::shared_ptr<gloo::transport::tcp::Device> device = make_gloo_device();
  Watch watch{std::chrono::milliseconds(200)};
};

class GlooGroup final : public Group {
 public:
  GlooGroup(GlooMembers members, std::shared_ptr<cleave::comm::KeyValueClient> store, CommOptions options,
            std::shared_ptr<Alarm> alarm, std::shared_ptr<GlooProcess> process)
      : Group(members.name, members.ranks, options),
        members_(std::move(members)),
        store_(std::move(store)),
        alarm_(std::move(alarm)),
        process_(std::move(process)),
        wires_{members_.key, members_.labels, *store_} {
    if (size() > 1) connect_all();
    wires_.abort = [this](const std::string& reason) { abort(reason); };
    alarm_->add(this);
    process_->watch.add(&wires_);
  }
  ~GlooGroup() override {
    process_->watch.remove(&wires_);
    alarm_->remove(this);
  }

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) override {
    wires_.throw_if_poisoned(w);
    const Tensor mine = shard.slice(piece);
    GlooExchange exchange(*this, wires_, w, 0);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.recv(full.slice(piece.shifted(r * shard.numel())), r);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.send(mine, r);
    const Tensor to = full.slice(piece.shifted(w.rank * shard.numel()));
    if (to.raw() != mine.raw()) std::memcpy(to.raw(), mine.raw(), size_t(mine.bytes()));
    exchange.finish();
  }

  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) override {
    wires_.throw_if_poisoned(w);
    uint64_t step = 0;
    const int64_t most = kPieceBytes / size_of(full.dtype());
    for (int64_t at = piece.begin; at < piece.end; at += most, ++step) {
      const Range c{at, std::min(piece.end, at + most)};
      reduce_parts(w, step, shard.slice(c), [&](int r) { return full.slice(c.shifted(r * shard.numel())); });
    }
  }

  void all_reduce(const Waiting& w, Tensor t) override {
    wires_.throw_if_poisoned(w);
    uint64_t step = 0;
    const int64_t most = kPieceBytes / size_of(t.dtype()) * size();
    for (int64_t at = 0; at < t.numel(); at += most) {
      const Tensor c = t.slice({at, std::min(t.numel(), at + most)});
      const auto part_of = [&](int r) { return c.slice(part(c.numel(), size(), r)); };
      reduce_parts(w, step++, part_of(w.rank), part_of);
      GlooExchange exchange(*this, wires_, w, step++);
      for (int r = 0; r < size(); ++r)
        if (r != w.rank) exchange.recv(part_of(r), r);
      for (int r = 0; r < size(); ++r)
        if (r != w.rank) exchange.send(part_of(w.rank), r);
      exchange.finish();
    }
  }

  void broadcast(const Waiting& w, Tensor t, int root) override {
    wires_.throw_if_poisoned(w);
    GlooExchange exchange(*this, wires_, w, 0);
    if (w.rank != root) exchange.recv(t, root);
    for (int r = 0; r < size(); ++r)
      if (w.rank == root && r != root) exchange.send(t, r);
    exchange.finish();
  }

  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece) override {
    wires_.throw_if_poisoned(w);
    const int64_t block = in.numel() / size();
    const auto of = [&](Tensor t, int r) { return t.slice(piece.shifted(r * block)); };
    GlooExchange exchange(*this, wires_, w, 0);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.recv(of(out, r), r);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.send(of(in, r), r);
    const Tensor mine = of(in, w.rank);
    std::memcpy(of(out, w.rank).raw(), mine.raw(), size_t(mine.bytes()));
    exchange.finish();
  }

  void barrier(const Waiting& w) override { exchange(w, 0); }

  void send(const Waiting& w, Tensor t, int to) override {
    wires_.throw_if_poisoned(w);
    // Gloo's send completes when the receiver takes the data; a copy and a separate worker free the caller.
    const auto* data = static_cast<const std::byte*>(t.raw());
    auto copy = std::make_shared<std::vector<std::byte>>(data, data + t.bytes());
    const Tensor view(copy->data(), t.dtype(), t.shape());
    auto exchange = std::make_shared<GlooExchange>(*this, wires_, w, 0);
    exchange->send(view, to);
    outbox_.enqueue([this, copy, exchange] {
      try {
        exchange->finish();
      } catch (const Error& e) {
        abort(e.what());
      }
    });
  }

  void recv(const Waiting& w, Tensor t, int from) override {
    wires_.throw_if_poisoned(w);
    GlooExchange exchange(*this, wires_, w, 0);
    exchange.recv(t, from);
    exchange.finish();
  }

  std::vector<int64_t> exchange(const Waiting& w, int64_t mine) override {
    wires_.throw_if_poisoned(w);
    std::vector<int64_t> all(static_cast<size_t>(size()));
    Waiting here = w;
    here.post.numel = exchanges_++;  // distinguishes several exchanges of one call
    all_gather(here, Tensor(all.data(), DType::int64, {size()}), Tensor(&mine, DType::int64, {1}), {0, 1});
    return all;
  }

  std::shared_ptr<Group> form(const Waiting& w, const std::vector<int>& members,
                              const std::string& name) override {
    const int me = int(std::find(members.begin(), members.end(), w.rank) - members.begin());
    GlooMembers next{
        name, {}, {}, me, members_.address, fmt::format("{}/{}.{}", members_.key, w.number, members[0])};
    for (int m : members) {
      next.ranks.push_back(ranks()[size_t(m)]);
      next.labels.push_back(members_.labels[size_t(m)]);
    }
    return std::make_shared<GlooGroup>(std::move(next), store_, options(), alarm_, process_);
  }

  std::string difference(const Waiting& w) override { return wires_.difference(w); }
  std::string lost() const override { return wires_.reason(); }
  void poison(const std::string& reason) override { wires_.poison(reason); }

  void abort(const std::string& reason) override {
    alarm_->notice(reason);
    poison(reason);
    store_->failed(reason);  // the other ranks do not share memory with this one
  }

  [[noreturn]] void give_up(const Waiting& w, const std::string& report, Exit exit) override {
    wires_.throw_if_poisoned(w);
    abort(report);
    fail(exit, "{}", report);
  }

 private:
  void connect_all() {
    const auto until = deadline();
    const auto place_of = [&](int r) { return fmt::format("{}/{}", members_.key, r); };
    store_->set(wires_.key_of_calls(members_.rank), "");
    store_->set(place_of(members_.rank), process_->listener.where());
    const auto context =
        std::make_shared<GlooContext>(process_->device, members_.rank, size(), options().timeout);
    // A rank calls all lower ranks and accepts all higher ones. Rank 0 only accepts, so every rank gets its
    // turn.
    for (int r = 0; r < size(); ++r) {
      if (r == members_.rank) continue;
      const DataLink link{members_.key, r, members_.labels[size_t(r)]};
      try {
        context->take(r, r < members_.rank ? connect_data(link, members_.rank,
                                                          place(place_of(r), link, until), *alarm_, until)
                                           : process_->listener.accept(link, *alarm_, until));
      } catch (const Error& e) {
        fail(e.exit(), "creating group '{}': {}", name(), e.what());
      } catch (const std::exception& e) {
        fail(Exit::rank_lost, "creating group '{}': {} closed the connection: {}", name(), link.label,
             e.what());
      }
    }
    wires_.context = context;
  }

  std::string place(const std::string& key, const DataLink& link, Clock::time_point until) {
    const auto where = store_->get(key, until);
    require(where.has_value(), Exit::rank_lost, "{} did not send its data address before the deadline",
            link.label);
    return *where;
  }

  // mine = reduction over ranks of their part_of(this rank); `mine` may be this rank's own part.
  template <class PartOf>
  void reduce_parts(const Waiting& w, uint64_t step, Tensor mine, PartOf part_of) {
    std::vector<std::byte> staging(size_t(mine.bytes() * (size() - 1)));
    std::vector<const std::byte*> sources;
    GlooExchange exchange(*this, wires_, w, step);
    std::byte* at = staging.data();
    for (int r = 0; r < size(); ++r) {
      if (r == w.rank) {
        sources.push_back(static_cast<const std::byte*>(part_of(r).raw()));
        continue;
      }
      exchange.recv(Tensor(at, mine.dtype(), {mine.numel()}), r);
      sources.push_back(at);
      at += mine.bytes();
    }
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.send(part_of(r), r);
    exchange.finish();
    reduce_in_order(w.post.by, mine.dtype(), mine.raw(), sources, mine.numel());
  }

  const GlooMembers members_;
  const std::shared_ptr<cleave::comm::KeyValueClient> store_;
  const std::shared_ptr<Alarm> alarm_;
  const std::shared_ptr<GlooProcess> process_;
  GlooWires wires_;
  int64_t exchanges_ = 0;
  Stream outbox_{Stream::Mode::worker};
};

}  // namespace

std::shared_ptr<Group> make_gloo_group(GlooMembers members, std::shared_ptr<KeyValueClient> store,
                                       CommOptions options, std::shared_ptr<Alarm> alarm) {
  auto process = std::make_shared<GlooProcess>(members.address, int(members.ranks.size()));
  return std::make_shared<GlooGroup>(std::move(members), std::move(store), options, std::move(alarm),
                                     std::move(process));
}

}  // namespace cleave::comm
