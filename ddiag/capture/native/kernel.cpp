// The native kernel: sees every c10d operation, issued from Python or from C++, and writes it into `.native.ring`
// (ddiag/schema/ring.py) without the GIL and without locks on the way.
//
// It is a boxed kernel at the ADInplaceOrView dispatch key, above every backend, which looks at the arguments, passes
// them on, and asks the returned Work's future to tell when it is over. Nothing here throws; what fails is counted.
// Blind spot: operations on inference tensors (torch.inference_mode) skip this key.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

// -- the layout of ddiag/schema/ring.py; tests/unit/capture/test_native_layout.py compares ----------------------------

constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kHeadOffset = 512;
constexpr uint64_t kLiveOffset = 576;
constexpr int kLiveStep = 1, kLivePhase = 2, kLiveProgress = 4, kLiveSeq = 5, kLiveErrors = 6, kLiveMicroStep = 9;
constexpr int kCountedCalls = 10, kCountedBytes = 11, kCountedWait = 12;
constexpr int kForwards = 16, kReplicas = 64;

struct Record {
  uint64_t index;
  uint16_t kind, op;
  uint32_t flags;
  int32_t group, label;
  int64_t step;
  uint16_t phase, dtype;
  int32_t peer;
  int64_t seq, enqueue_ns, start_ns, end_ns, bytes_in, bytes_out, thread;
  double value;
  uint32_t state, micro_step;
  char rest[16];
};
static_assert(sizeof(Record) == 128, "a record has 128 bytes");
static_assert(offsetof(Record, end_ns) == 64 && offsetof(Record, state) == 104, "see ring.END_OFFSET, STATE_OFFSET");

enum Kind : uint16_t { kCollective = 1 };
enum State : uint32_t { kOpen = 1, kIssued = 2, kDone = 3, kFailed = 4 };
enum Flag : uint32_t { kAsync = 1, kNativeFlag = 4, kEndIsWait = 16, kEndUnknown = 256 };
constexpr uint16_t kNoDtype = 65535;
constexpr uint16_t kBackward = 4;

enum Op : uint16_t {
  kAllReduce = 1, kAllGather, kReduceScatter, kBroadcast, kReduce, kAllToAll, kGather, kScatter, kSend, kRecv, kBarrier,
  kWait = 13
};

struct Operation {
  const char* name;
  Op op;
};
constexpr std::array<Operation, 20> kOperations{{
    {"allreduce_", kAllReduce},
    {"allreduce_coalesced_", kAllReduce},
    {"_allgather_base_", kAllGather},
    {"allgather_", kAllGather},
    {"allgather_coalesced_", kAllGather},
    {"allgather_into_tensor_coalesced_", kAllGather},
    {"_reduce_scatter_base_", kReduceScatter},
    {"reduce_scatter_", kReduceScatter},
    {"reduce_scatter_tensor_coalesced_", kReduceScatter},
    {"broadcast_", kBroadcast},
    {"reduce_", kReduce},
    {"alltoall_", kAllToAll},
    {"alltoall_base_", kAllToAll},
    {"gather_", kGather},
    {"scatter_", kScatter},
    {"send", kSend},
    {"recv_", kRecv},
    {"recv_any_source_", kRecv},
    {"barrier", kBarrier},
    {"monitored_barrier_", kBarrier},
}};
bool point_to_point(Op op) { return op == kSend || op == kRecv; }

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);  // what Python's time.monotonic_ns reads
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// -- the ring --------------------------------------------------------------------------------------------------------

// One recording of this process. Never freed: a late completion of an earlier one may still write into its mapping.
struct Ring {
  char* base;
  Record* records;
  uint64_t capacity;
  const int64_t* live;     // of the Python ring: step, phase, micro step
  int64_t* own_live;       // of this ring: progress, seq, errors
  int64_t* python_live;    // where the supervisor looks for progress
  int64_t training_thread;
  std::atomic<uint64_t> next{0};
};

std::atomic<Ring*> active{nullptr};
std::atomic<int64_t> errors{0};

template <class T>
void put(T* place, T value) { __atomic_store_n(place, value, __ATOMIC_RELAXED); }
void add_to(int64_t* place, int64_t value) { __atomic_fetch_add(place, value, __ATOMIC_RELAXED); }

void count_error(Ring* ring) {
  const int64_t so_far = errors.fetch_add(1, std::memory_order_relaxed) + 1;
  if (ring != nullptr) put(ring->own_live + kLiveErrors, so_far);
}

uint64_t begin(Ring* ring, Record filled) {
  const uint64_t token = ring->next.fetch_add(1, std::memory_order_relaxed);
  Record* slot = ring->records + token % ring->capacity;
  put(&slot->index, uint64_t{0});
  __atomic_thread_fence(__ATOMIC_RELEASE);
  const size_t skip = sizeof(uint64_t);
  std::memcpy(reinterpret_cast<char*>(slot) + skip, reinterpret_cast<char*>(&filled) + skip, sizeof(Record) - skip);
  __atomic_store_n(&slot->index, token + 1, __ATOMIC_RELEASE);
  put(reinterpret_cast<uint64_t*>(ring->base + kHeadOffset), token + 1);
  return token;
}

Record* slot_of(Ring* ring, uint64_t token) {
  Record* slot = ring->records + token % ring->capacity;
  return __atomic_load_n(&slot->index, __ATOMIC_ACQUIRE) == token + 1 ? slot : nullptr;
}

// The call returned. A completion may have come first: it stays.
void issued(Ring* ring, uint64_t token, uint32_t flags) {
  Record* slot = slot_of(ring, token);
  if (slot == nullptr) return;
  if (flags != 0) __atomic_fetch_or(&slot->flags, flags, __ATOMIC_RELAXED);
  uint32_t expected = kOpen;
  __atomic_compare_exchange_n(&slot->state, &expected, uint32_t{kIssued}, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

void complete(Ring* ring, uint64_t token, bool ok, uint32_t flags = 0) {
  const int64_t now = now_ns();
  put(ring->python_live + kLiveProgress, now);
  put(ring->own_live + kLiveProgress, now);
  Record* slot = slot_of(ring, token);
  if (slot == nullptr) return;
  if (flags != 0) __atomic_fetch_or(&slot->flags, flags, __ATOMIC_RELAXED);
  put(&slot->end_ns, now);
  __atomic_store_n(&slot->state, ok ? uint32_t{kDone} : uint32_t{kFailed}, __ATOMIC_RELEASE);
}

// -- what Python knows and this code asks ------------------------------------------------------------------------------

thread_local int32_t own_label = -1;
thread_local uint32_t own_flags = 0;
thread_local int64_t own_tid = 0;
// Labels of the transfers this thread issues next, in order (a pipeline's batch).
thread_local std::vector<int32_t> own_plan;
thread_local size_t own_planned = 0;

int64_t tid() {
  if (own_tid == 0) own_tid = syscall(SYS_gettid);
  return own_tid;
}

// Of a gradient reducer: what it reduces, in order, in every backward pass; see labels.py.
struct Buckets {
  std::vector<int64_t> bytes;
  std::vector<int32_t> labels;
  std::vector<char> given;
  size_t replica = 0;    // its place among the words that count forward passes
  int64_t forwards = 0;  // so many when it was last rewound
  size_t next = 0;

  void rewind() {
    next = 0;
    given.assign(bytes.size(), 0);
  }

  // A backward pass after another forward pass begins anew.
  int32_t label(int64_t of_bytes, const int64_t* live) {
    const int64_t now = live[kForwards + replica];
    if (now != forwards) {
      forwards = now;
      rewind();
    }
    return next_of(of_bytes);
  }

  int32_t next_of(int64_t of_bytes) {
    for (size_t skipped = 0; skipped < bytes.size(); ++skipped) {
      const size_t at = (next + skipped) % bytes.size();
      if (bytes[at] == of_bytes && !given[at]) {
        next = at + 1;
        given[at] = 1;
        return labels[at];
      }
    }
    return -1;
  }

  // In a pass whose begin nobody saw: the one before must be over.
  int32_t again(int64_t of_bytes) {
    if (std::find(bytes.begin(), bytes.end(), of_bytes) == bytes.end()) return -1;
    rewind();
    return next_of(of_bytes);
  }
};

int32_t bucket_of(std::vector<Buckets>& reducers, int64_t bytes, const int64_t* live) {
  int32_t found = -1;
  for (size_t at = 0; found < 0 && at < reducers.size(); ++at) found = reducers[at].label(bytes, live);
  for (size_t at = 0; found < 0 && at < reducers.size(); ++at) found = reducers[at].again(bytes);
  return found;
}

struct Group {
  int32_t id = -1;
  int64_t collectives = 0;
  std::unordered_map<int64_t, int64_t> point_to_point;  // by peer and direction
  std::vector<Buckets> reducers;
};

// Held for a look-up and a count only; never while torch runs.
std::mutex tables;
std::unordered_map<const void*, Group> groups;
std::array<uint16_t, 128> dtypes;

// Works whose future torch does not offer (gloo's reduce_scatter, send, recv): their end is seen when somebody waits.
std::unordered_map<const void*, uint64_t> waited_works;
std::atomic<size_t> waited_count{0};
constexpr size_t kMostWaited = 4096;

struct Numbers {
  int32_t group;
  int64_t seq;
  int32_t label;
};

Numbers numbers_of(const Ring* ring, const c10d::ProcessGroup* group, Op op, int32_t peer, int64_t bytes, bool in_backward) {
  std::lock_guard<std::mutex> hold(tables);
  Group& found = groups[group];
  Numbers numbers{found.id, 0, own_label};
  if (point_to_point(op)) {
    numbers.seq = ++found.point_to_point[int64_t{peer} * 2 + (op == kSend)];
    if (own_planned < own_plan.size()) numbers.label = own_plan[own_planned++];
  } else {
    numbers.seq = ++found.collectives;
  }
  if (op == kAllReduce && in_backward && own_label < 0) numbers.label = bucket_of(found.reducers, bytes, ring->live);
  return numbers;
}

void forget_waited(const void* work) {
  if (waited_count.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> hold(tables);
  waited_works.erase(work);
  waited_count.store(waited_works.size(), std::memory_order_relaxed);
}

// -- the arguments of an operation ------------------------------------------------------------------------------------

// Where an operation's schema (it differs between versions of torch) keeps what we look at; -1 it has none.
struct Places {
  int arguments = 0, group = -1, async = -1, peer = -1, given = -1, taken = -1, both = -1;
};

Places find_places(const c10::FunctionSchema& schema) {
  Places found;
  const auto& arguments = schema.arguments();
  found.arguments = static_cast<int>(arguments.size());
  for (int i = 0; i < found.arguments; ++i) {
    const std::string_view name = arguments[i].name();
    if (name == "process_group") found.group = i;
    else if (name == "async_op") found.async = i;
    else if (name == "root_rank" || name == "dst" || name == "src") found.peer = i;
    else if (name == "tensors" || name == "tensor") found.both = i;
    else if (found.taken < 0 && name.substr(0, 6) == "output") found.taken = i;
    else if (found.given < 0 && name.substr(0, 5) == "input") found.given = i;
  }
  return found;
}

struct Size {
  int64_t bytes = 0;
  int dtype = -1;
  bool on_host = true;
};

void add(Size& size, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() == at::kStrided) {
    size.bytes += static_cast<int64_t>(tensor.nbytes());
  } else if (tensor.is_sparse()) {  // torch tells no size of it
    size.bytes += static_cast<int64_t>(tensor._indices().nbytes() + tensor._values().nbytes());
  }
  if (size.dtype < 0) {
    size.dtype = static_cast<int>(tensor.scalar_type());
    size.on_host = tensor.device().is_cpu();
  }
}

void add(Size& size, const c10::IValue& value) {
  if (value.isTensor()) {
    add(size, value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& one : value.toTensorList()) add(size, one);
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toList()) add(size, one);
  }
}

// -- the kernel --------------------------------------------------------------------------------------------------------

// What is recorded of one operation.
struct Call {
  const c10d::ProcessGroup* group = nullptr;
  Size given, taken;
  int32_t peer = -1;
  bool async = true;
};

struct Taken {
  Ring* ring = nullptr;
  uint64_t token = 0;
  bool on_host = true;
};

Taken begin_call(Ring* ring, Op op, const Call& call) {
  const Size& known = call.given.dtype >= 0 ? call.given : call.taken;
  Record record{};
  record.kind = kCollective;
  record.op = op;
  record.peer = call.peer;
  record.phase = static_cast<uint16_t>(ring->live[kLivePhase]);
  record.step = ring->live[kLiveStep];
  record.micro_step = static_cast<uint32_t>(ring->live[kLiveMicroStep]);
  record.bytes_in = op == kBarrier ? 0 : call.given.bytes;
  record.bytes_out = op == kBarrier ? 0 : call.taken.bytes;
  record.dtype = op == kBarrier || known.dtype < 0 || known.dtype >= 128 ? kNoDtype : dtypes[known.dtype];
  const Numbers numbers = numbers_of(ring, call.group, op, record.peer, call.given.bytes, record.phase == kBackward);
  record.group = numbers.group;
  record.seq = numbers.seq;
  record.label = numbers.label;
  record.flags = kNativeFlag | own_flags | (call.async ? uint32_t{kAsync} : 0u);
  record.thread = tid();
  record.state = kOpen;
  record.enqueue_ns = record.start_ns = now_ns();
  put(ring->python_live + kLiveProgress, record.enqueue_ns);
  put(ring->own_live + kLiveProgress, record.enqueue_ns);
  put(ring->python_live + kLiveSeq, record.seq);
  add_to(ring->python_live + kCountedCalls, 1);
  add_to(ring->python_live + kCountedBytes, record.bytes_in);
  return {ring, begin(ring, record), known.on_host && call.given.on_host};
}

Taken take(Ring* ring, size_t which, const Places& places, const torch::jit::Stack& stack) {
  if (places.group < 0 || places.arguments > static_cast<int>(stack.size())) return {};
  const c10::IValue* arguments = stack.data() + (stack.size() - places.arguments);
  const Op op = kOperations[which].op;
  Call call;
  if (op != kBarrier) {
    if (places.given >= 0) add(call.given, arguments[places.given]);
    if (places.taken >= 0) add(call.taken, arguments[places.taken]);
    if (places.both >= 0 && op != kRecv) add(call.given, arguments[places.both]);
    if (places.both >= 0 && op != kSend) add(call.taken, arguments[places.both]);
  } else if (places.both >= 0 && arguments[places.both].isTensor()) {
    call.given.on_host = arguments[places.both].toTensor().device().is_cpu();
  }
  const auto group = arguments[places.group].toCustomClass<c10d::ProcessGroup>();
  call.group = group.get();
  if (places.peer >= 0) call.peer = static_cast<int32_t>(arguments[places.peer].toInt());
  call.async = places.async < 0 || arguments[places.async].toBool();
  return begin_call(ring, op, call);
}

// Torch raises in getFuture where a backend offers none, which is dear: it is asked once per operation.
std::array<std::atomic<bool>, kOperations.size()> no_future{};

// The call returned *work*; monitored_barrier returns none, and only once all have come.
void follow(size_t which, const Taken& taken, c10d::Work* work) {
  if (work == nullptr) {
    complete(taken.ring, taken.token, true);
    return;
  }
  if (!taken.on_host) {
    issued(taken.ring, taken.token, kEndUnknown);  // a device's future is complete at once: it says nothing
    return;
  }
  forget_waited(work);
  if (!no_future[which].load(std::memory_order_relaxed)) {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work->getFuture();
    } catch (const std::exception&) {
      no_future[which].store(true, std::memory_order_relaxed);
    }
    if (future) {
      Ring* ring = taken.ring;
      const uint64_t token = taken.token;
      issued(ring, token, 0);
      future->addCallback([ring, token](c10::ivalue::Future& done) { complete(ring, token, !done.hasError()); }, true);
      return;
    }
  }
  issued(taken.ring, taken.token, kEndIsWait);
  std::lock_guard<std::mutex> hold(tables);
  if (waited_works.size() >= kMostWaited) waited_works.clear();
  waited_works[work] = taken.token;
  waited_count.store(waited_works.size(), std::memory_order_relaxed);
}

// Begins a record, runs *original*, follows the work it returned. *take* and *work_of* may throw, to no effect.
template <class Take, class Original, class WorkOf>
auto observed(size_t which, Take&& take, Original&& original, WorkOf&& work_of) {
  Ring* ring = active.load(std::memory_order_acquire);
  Taken taken;
  if (ring != nullptr) {
    try {
      taken = take(ring);
    } catch (const std::exception&) {
      count_error(ring);
    }
  }
  auto finish = [&](auto&&... returned) {
    if (taken.ring == nullptr) return;
    try {
      const c10::intrusive_ptr<c10d::Work> work = work_of(returned...);
      follow(which, taken, work.get());
    } catch (const std::exception&) {
      count_error(taken.ring);
    }
  };
  try {
    if constexpr (std::is_void_v<decltype(original())>) {
      original();
      finish();
    } else {
      auto returned = original();
      finish(returned);
      return returned;
    }
  } catch (...) {
    if (taken.ring != nullptr) complete(taken.ring, taken.token, false);
    throw;
  }
}

template <size_t Which>
void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const Places places = find_places(op.schema());
  observed(
      Which, [&](Ring* ring) { return take(ring, Which, places, *stack); },
      [&] { op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack); },
      [&] {
        if (stack->empty() || !stack->back().isCustomClass()) return c10::intrusive_ptr<c10d::Work>();
        return stack->back().toCustomClass<c10d::Work>();
      });
}

// -- the most frequent operations, by their own types ------------------------------------------------------------------
// For a boxed kernel the dispatcher packs all arguments and unpacks them again, which between the kernels of a real step,
// caches cold, costs more than our own work. So these have kernels of their own, wherever torch declares them like this.

using Members = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Reduction = c10::intrusive_ptr<c10d::ReduceOp>;
using ListAndWork = std::tuple<std::vector<at::Tensor>, Work>;
using TensorAndWork = std::tuple<at::Tensor, Work>;

constexpr size_t number_of(std::string_view name) {
  for (size_t which = 0; which < kOperations.size(); ++which) {
    if (name == kOperations[which].name) return which;
  }
  return kOperations.size();
}
constexpr size_t kAllReduces = number_of("allreduce_"), kGathers = number_of("_allgather_base_"),
                 kReduceScatters = number_of("_reduce_scatter_base_");

template <class Signature>
c10::TypedOperatorHandle<Signature> typed(size_t which) {
  const std::string name = std::string("c10d::") + kOperations[which].name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Signature>();
}

constexpr auto work_beside = [](const auto& returned) { return std::get<1>(returned); };

// *given* and *taken* are the same tensors for an operation in place.
Call call_of(at::TensorList given, at::TensorList taken, const Members& group, bool async) {
  Call call;
  for (const at::Tensor& one : given) add(call.given, one);
  for (const at::Tensor& one : taken) add(call.taken, one);
  call.group = group.get();
  call.async = async;
  return call;
}

constexpr std::string_view kAllReduceSchema =
    "c10d::allreduce_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, "
    "__torch__.torch.classes.c10d.ReduceOp reduce_op, Tensor? sparse_indices, bool async_op=True, int timeout=-1) -> "
    "(Tensor[], __torch__.torch.classes.c10d.Work)";

ListAndWork all_reduce(c10::DispatchKeySet keys, at::TensorList tensors, const Members& group, const Reduction& how,
                       const std::optional<at::Tensor>& sparse, bool async, int64_t timeout) {
  static const auto op = typed<ListAndWork(at::TensorList, const Members&, const Reduction&,
                                           const std::optional<at::Tensor>&, bool, int64_t)>(kAllReduces);
  return observed(
      kAllReduces, [&](Ring* ring) { return begin_call(ring, kAllReduce, call_of(tensors, tensors, group, async)); },
      [&] { return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, tensors, group, how, sparse, async, timeout); },
      work_beside);
}

constexpr std::string_view kGatherSchema =
    "c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor, __torch__.torch.classes.c10d.ProcessGroup "
    "process_group, bool async_op=True, int timeout=-1) -> (Tensor, __torch__.torch.classes.c10d.Work)";

TensorAndWork gather(c10::DispatchKeySet keys, at::Tensor& output, at::Tensor& input, const Members& group, bool async,
                     int64_t timeout) {
  static const auto op = typed<TensorAndWork(at::Tensor&, at::Tensor&, const Members&, bool, int64_t)>(kGathers);
  return observed(
      kGathers, [&](Ring* ring) { return begin_call(ring, kAllGather, call_of(input, output, group, async)); },
      [&] { return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, output, input, group, async, timeout); },
      work_beside);
}

constexpr std::string_view kReduceScatterSchema =
    "c10d::_reduce_scatter_base_(Tensor output_tensor, Tensor input_tensor, __torch__.torch.classes.c10d.ProcessGroup "
    "process_group, __torch__.torch.classes.c10d.ReduceOp reduce_op, bool async_op=True, int timeout=-1) -> (Tensor, "
    "__torch__.torch.classes.c10d.Work)";

TensorAndWork reduce_scatter(c10::DispatchKeySet keys, at::Tensor& output, at::Tensor& input, const Members& group,
                             const Reduction& how, bool async, int64_t timeout) {
  static const auto op =
      typed<TensorAndWork(at::Tensor&, at::Tensor&, const Members&, const Reduction&, bool, int64_t)>(kReduceScatters);
  return observed(
      kReduceScatters, [&](Ring* ring) { return begin_call(ring, kReduceScatter, call_of(input, output, group, async)); },
      [&] { return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, output, input, group, how, async, timeout); },
      work_beside);
}

template <size_t Which>
torch::CppFunction function_for(const c10::FunctionSchema& schema) {
  const std::string declared = c10::toString(schema);
  if constexpr (Which == kAllReduces) {
    if (declared == kAllReduceSchema) return torch::CppFunction(&all_reduce);
  } else if constexpr (Which == kGathers) {
    if (declared == kGatherSchema) return torch::CppFunction(&gather);
  } else if constexpr (Which == kReduceScatters) {
    if (declared == kReduceScatterSchema) return torch::CppFunction(&reduce_scatter);
  }
  return torch::CppFunction::makeFromBoxedFunction<&kernel<Which>>();
}

constexpr int64_t kShortestWait = 20'000;  // waits.SHORTEST_NS

Record wait_record(Ring* ring) {
  Record record{};
  record.kind = kCollective;
  record.op = kWait;
  record.flags = own_flags;
  record.group = record.peer = -1;
  record.label = own_label;
  record.dtype = kNoDtype;
  record.seq = -1;
  record.step = ring->live[kLiveStep];
  record.phase = static_cast<uint16_t>(ring->live[kLivePhase]);
  record.micro_step = static_cast<uint32_t>(ring->live[kLiveMicroStep]);
  record.thread = tid();
  return record;
}

// The host waits for a functional collective: `_c10d_functional::wait_tensor`.
void wait_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Ring* ring = active.load(std::memory_order_acquire);
  if (ring == nullptr) {
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    return;
  }
  Record record = wait_record(ring);
  record.flags |= kNativeFlag;
  record.state = kOpen;
  record.enqueue_ns = record.start_ns = now_ns();
  const uint64_t token = begin(ring, record);
  try {
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  } catch (...) {
    complete(ring, token, false);
    throw;
  }
  complete(ring, token, true);
  if (record.thread == ring->training_thread) add_to(ring->python_live + kCountedWait, now_ns() - record.enqueue_ns);
}

TORCH_LIBRARY_IMPL(_c10d_functional, ADInplaceOrView, library) {
  if (c10::Dispatcher::singleton().findSchema({"_c10d_functional::wait_tensor", ""}).has_value()) {
    library.impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_kernel>());
  }
}

template <size_t... Which>
void register_kernels(torch::Library& library, std::index_sequence<Which...>) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto one = [&](const char* name, auto function) {
    const auto found = dispatcher.findSchema({std::string("c10d::") + name, ""});
    if (found.has_value()) library.impl(name, function(found->schema()));
  };
  (one(kOperations[Which].name, &function_for<Which>), ...);
}

TORCH_LIBRARY_IMPL(c10d, ADInplaceOrView, library) {
  register_kernels(library, std::make_index_sequence<kOperations.size()>{});
}

// -- Python's side -----------------------------------------------------------------------------------------------------

char* map_file(const std::string& path, uint64_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

bool start(const std::string& own, const std::string& python, uint64_t capacity, int64_t training_thread) {
  char* base = map_file(own, kHeaderBytes + capacity * sizeof(Record));
  char* other = map_file(python, kHeaderBytes);
  if (base == nullptr || other == nullptr) return false;
  auto* ring = new Ring;
  ring->base = base;
  ring->records = reinterpret_cast<Record*>(base + kHeaderBytes);
  ring->capacity = capacity;
  ring->training_thread = training_thread;
  ring->python_live = reinterpret_cast<int64_t*>(other + kLiveOffset);
  ring->live = ring->python_live;
  ring->own_live = reinterpret_cast<int64_t*>(base + kLiveOffset);
  active.store(ring, std::memory_order_release);
  return true;
}

void stop() { active.store(nullptr, std::memory_order_release); }

// Go on with *ring*, a value that the last hold returned. For measurements: a start maps the files anew.
uintptr_t hold() { return reinterpret_cast<uintptr_t>(active.exchange(nullptr)); }
void go_on(uintptr_t ring) { active.store(reinterpret_cast<Ring*>(ring), std::memory_order_release); }

// A fork must not catch another thread inside the tables.
void before_fork() { tables.lock(); }
void after_fork() { tables.unlock(); }

void sleep_in_child() {
  active.store(nullptr, std::memory_order_release);
  own_tid = 0;
  waited_works.clear();
  waited_count.store(0);
  tables.unlock();
}

void set_group(const c10d::ProcessGroup& group, int32_t id) {
  std::lock_guard<std::mutex> hold(tables);
  groups[&group] = Group{};  // the address may have belonged to a group that is gone
  groups[&group].id = id;
}

void set_dtype(at::ScalarType type, uint16_t id) { dtypes.at(static_cast<size_t>(type)) = id; }

void set_context(int32_t label, uint32_t flags) {
  own_label = label;
  own_flags = flags;
}

void set_plan(std::vector<int32_t> labels) {
  own_plan = std::move(labels);
  own_planned = 0;
}

void set_buckets(const c10d::ProcessGroup& group, size_t reducer, size_t replica, std::vector<int64_t> bytes,
                 std::vector<int32_t> labels) {
  std::lock_guard<std::mutex> hold(tables);
  auto& reducers = groups[&group].reducers;
  if (reducers.size() <= reducer) reducers.resize(reducer + 1);
  reducers[reducer] = Buckets{std::move(bytes), std::move(labels), {}, replica % kReplicas};
  reducers[reducer].rewind();
}

// Python has waited for *work* since *began_ns*.
void waited(const c10d::Work& work, int64_t began_ns, bool ok) {
  Ring* ring = active.load(std::memory_order_acquire);
  if (ring == nullptr) return;
  const int64_t now = now_ns();
  if (now - began_ns >= kShortestWait) {
    Record record = wait_record(ring);
    record.enqueue_ns = record.start_ns = began_ns;
    record.end_ns = now;
    record.state = ok ? kDone : kFailed;
    begin(ring, record);
    if (record.thread == ring->training_thread) add_to(ring->python_live + kCountedWait, now - began_ns);
  }
  if (waited_count.load(std::memory_order_relaxed) == 0) return;
  uint64_t token = 0;
  {
    std::lock_guard<std::mutex> hold(tables);
    const auto found = waited_works.find(&work);
    if (found == waited_works.end()) return;
    token = found->second;
    waited_works.erase(found);
    waited_count.store(waited_works.size(), std::memory_order_relaxed);
  }
  complete(ring, token, ok, kEndIsWait);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  dtypes.fill(kNoDtype);
  pthread_atfork(before_fork, after_fork, sleep_in_child);
  module.def("start", &start);
  module.def("stop", &stop);
  module.def("hold", &hold);
  module.def("go_on", &go_on);
  module.def("set_group", &set_group);
  module.def("set_dtype", &set_dtype);
  module.def("set_context", &set_context);
  module.def("set_plan", &set_plan);
  module.def("set_buckets", &set_buckets);
  module.def("waited", &waited);
  module.def("errors", [] { return errors.load(); });
}
