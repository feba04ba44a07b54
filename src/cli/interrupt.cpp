#include "cli/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace millrace::cli {
namespace {

constexpr int kInterruptedExit = 130;  // what shells report for SIGINT
constexpr unsigned kGraceSeconds = 1;

volatile std::sig_atomic_t g_pressed = 0;
volatile std::sig_atomic_t g_exit_soon = 1;

// Nothing here is half-written when we leave like this: output goes to a terminal or pipe, and
// packs are only renamed into place once they are whole.
[[noreturn]] void leave() {
  const char newline = '\n';
  if (::isatty(STDERR_FILENO)) [[maybe_unused]]
    const auto n = ::write(STDERR_FILENO, &newline, 1);
  ::_exit(kInterruptedExit);
}

void on_interrupt(int) {
  if (g_pressed) leave();
  g_pressed = 1;
  if (g_exit_soon) ::alarm(kGraceSeconds);
}

void on_alarm(int) { leave(); }

}  // namespace

void watch_interrupts(OnInterrupt policy) {
  g_exit_soon = policy == OnInterrupt::kExitSoon ? 1 : 0;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a prompt that waits for a line must wake up.
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  action.sa_handler = on_alarm;
  ::sigaction(SIGALRM, &action, nullptr);
}

bool interrupted() { return g_pressed != 0; }
void clear_interrupt() { g_pressed = 0; }

}  // namespace millrace::cli
