// Ctrl-C. The handler can only reach static state, so this is the one place that has some.
#pragma once

namespace millrace::cli {

enum class OnInterrupt {
  kExitSoon,    // ask the work to stop; leave within a second even when it does not
  kStopAnswer,  // chat: the first press stops the answer, the next one leaves
};

// Takes over SIGINT. Before this call Ctrl-C ends the process as usual.
void watch_interrupts(OnInterrupt policy);

bool interrupted();      // pressed since the last clear
void clear_interrupt();  // a new answer starts

}  // namespace millrace::cli
