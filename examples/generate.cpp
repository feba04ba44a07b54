// The smallest useful program on the library: open a model under a budget, ask, print the answer as
// it is made.
//
//   generate MODEL PROMPT [BUDGET_MIB]

#include <cstdio>
#include <cstdlib>
#include <string>

#include "millrace/millrace.h"

namespace {

int fail(const millrace::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL PROMPT [BUDGET_MIB]\n", argv[0]);
    return 2;
  }
  millrace::EngineOptions options;
  options.model = argv[1];
  if (argc > 3) options.budget = std::strtoull(argv[3], nullptr, 10) << 20;

  auto engine = millrace::Engine::open(options);
  if (!engine) return fail(engine.error());

  millrace::Request request;
  request.prompt = argv[2];
  request.max_tokens = 48;
  if (auto id = (*engine)->submit(request); !id) return fail(id.error());

  // Each step is one pass over the model for every active request. Text arrives in whole
  // characters.
  std::string problem;
  const auto on_event = [&problem](const millrace::Event& event) {
    std::fwrite(event.text.data(), 1, event.text.size(), stdout);
    std::fflush(stdout);
    if (event.error != nullptr) problem = event.error->message;
  };
  for (;;) {
    const auto more = (*engine)->step(on_event);
    if (!more) return fail(more.error());
    if (!*more) break;
  }
  std::printf("\n");
  if (!problem.empty()) return fail({millrace::Code::kInternal, problem});

  const millrace::IoReport io = (*engine)->io();
  const millrace::MemoryReport memory = (*engine)->memory();
  std::fprintf(stderr, "weights in memory: %.1f MiB; read from disk: %.1f MiB\n",
               static_cast<double>(memory.arena) / (1 << 20),
               static_cast<double>(io.bytes_read) / (1 << 20));
  return 0;
}
