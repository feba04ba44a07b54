// A fixed set of worker threads for data-parallel loops inside the token loop.
//
// parallel() cuts [0, count) into pieces and every thread takes the next one until none is left, so
// a thread that is late (asleep, or its core is busy with something else) costs nothing: the others
// do its share. Results may not depend on the cut (kernel contract). The caller is thread 0.
// Workers spin briefly between calls, then sleep.
#pragma once

#include <cstdint>
#include <memory>

namespace millrace {

class Threads {
 public:
  explicit Threads(unsigned count);  // >= 1
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  unsigned count() const;

  // Calls body(context, begin, end, thread) for disjoint ranges that cover [0, count), possibly
  // several times on one thread; returns when all are done. `grain` is the least worth a piece of
  // its own.
  using Body = void (*)(void* context, uint64_t begin, uint64_t end, unsigned thread);
  void run(uint64_t count, uint64_t grain, Body body, void* context);

  template <class F>
  void parallel(uint64_t count, uint64_t grain, F&& f) {
    run(
        count, grain,
        [](void* c, uint64_t b, uint64_t e, unsigned t) { (*static_cast<F*>(c))(b, e, t); }, &f);
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
