// Goroutines that switch, grow their stacks, panic and recover. Each keeps a list of its own open calls, which it hands to what it calls:
// nothing in Go tells a goroutine apart.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
)

// What is open in a goroutine.
type shadow struct {
	open   []string
	number int32
	// The thread on which it began, and whether it has run on another one since.
	thread int
	moved  bool
}

type entry struct {
	function, parent string
	depth            int
	goroutine        int32
	moved            bool
}

var entries [20000]entry
var count, goroutines int32
var done = make(chan bool)

//go:noinline
func newShadow() *shadow {
	return &shadow{open: make([]string, 0, 4000), number: atomic.AddInt32(&goroutines, 1)}
}

// A call that the scheduler does not know of: it moves no goroutine to another thread.
//
//go:noinline
func thread() int {
	tid, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	return int(tid)
}

//go:noinline
func (s *shadow) enter(function string) {
	tid := thread()
	if s.thread == 0 {
		s.thread = tid
	}
	s.moved = s.moved || s.thread != tid
	parent := ""
	if len(s.open) > 0 {
		parent = s.open[len(s.open)-1]
	}
	// Another goroutine may run here, too.
	at := atomic.AddInt32(&count, 1) - 1
	entries[at] = entry{function, parent, len(s.open), s.number, s.moved}
	s.open = append(s.open, function)
}

//go:noinline
func (s *shadow) leave() { s.open = s.open[:len(s.open)-1] }

// Everything within the innermost call of a function is over.
//
//go:noinline
func (s *shadow) unwoundTo(function string) {
	for s.open[len(s.open)-1] != function {
		s.leave()
	}
}

//go:noinline
func leaf(s *shadow, x int) int {
	s.enter("main.leaf")
	s.leave()
	return x + 1
}

// Stack growth: each call takes a kilobyte, and a goroutine begins with two.
//
//go:noinline
func grows(s *shadow, n int) int {
	s.enter("main.grows")
	var room [128]int
	for i := range room {
		room[i] = n + i
	}
	sum := room[n%128]
	if n > 0 {
		sum += grows(s, n-1)
	}
	sum += leaf(s, room[(n*7)%128])
	s.leave()
	return sum
}

// Two ways to a channel: from the same places in the runtime, and from different ones here.
//
//go:noinline
func receives(s *shadow, from chan int) int {
	s.enter("main.receives")
	x := leaf(s, <-from)
	s.leave()
	return x
}

//go:noinline
func sends(s *shadow, to chan int, x int) {
	s.enter("main.sends")
	to <- leaf(s, x)
	s.leave()
}

//go:noinline
func produces(s *shadow, to chan int, n int) {
	s.enter("main.produces")
	for i := 0; i < n; i++ {
		sends(s, to, i)
	}
	s.leave()
	done <- true
}

//go:noinline
func passesOn(s *shadow, from, to chan int, n int) {
	s.enter("main.passesOn")
	for i := 0; i < n; i++ {
		sends(s, to, receives(s, from))
	}
	s.leave()
	done <- true
}

//go:noinline
func doubles(s *shadow, from, to chan int, n int) {
	s.enter("main.doubles")
	for i := 0; i < n; i++ {
		x := receives(s, from)
		grows(s, 3+i)
		sends(s, to, 2*x)
	}
	s.leave()
	done <- true
}

//go:noinline
func selects(s *shadow, first, second chan int, n int) int {
	s.enter("main.selects")
	sum := 0
	for i := 0; i < n; i++ {
		select {
		case x := <-first:
			sum += leaf(s, x)
		case x := <-second:
			sum -= leaf(s, x)
		}
	}
	s.leave()
	return sum
}

//go:noinline
func panics(s *shadow, n int) int {
	s.enter("main.panics")
	if n == 0 {
		panic("at the bottom")
	}
	x := deeper(s, n-1)
	s.leave()
	return x
}

//go:noinline
func deeper(s *shadow, n int) int {
	s.enter("main.deeper")
	defer cleansUp(s, n)
	x := panics(s, n)
	s.leave()
	return x
}

//go:noinline
func cleansUp(s *shadow, n int) {
	s.enter("main.cleansUp")
	leaf(s, n)
	s.leave()
}

//go:noinline
func recovers(s *shadow, n int) (x int) {
	s.enter("main.recovers")
	defer func() {
		s.enter("main.recovers.func1")
		if recover() != nil {
			x = leaf(s, n)
		}
		s.unwoundTo("main.recovers.func1")
		s.leave()
		s.unwoundTo("main.recovers")
		s.leave()
	}()
	return deeper(s, n)
}

//go:noinline
func defersInLoop(s *shadow, n int) {
	s.enter("main.defersInLoop")
	// What is deferred later runs before this, in the same call.
	defer s.leave()
	leaf(s, n)
	for i := 0; i < n; i++ {
		defer cleansUp(s, i)
	}
}

type shape interface {
	area(s *shadow) int
}
type square struct{ side int }
type disc struct{ radius int }

//go:noinline
func (q *square) area(s *shadow) int {
	s.enter("main.(*square).area")
	area := leaf(s, q.side*q.side)
	s.leave()
	return area
}

//go:noinline
func (d *disc) area(s *shadow) int {
	s.enter("main.(*disc).area")
	area := 3 * d.radius * leaf(s, d.radius)
	s.leave()
	return area
}

//go:noinline
func sums(s *shadow, shapes []shape) int {
	s.enter("main.sums")
	sum := 0
	for _, shape := range shapes {
		sum += shape.area(s)
	}
	s.leave()
	return sum
}

//go:noinline
func applies(s *shadow, f func(int) int, n int) int {
	s.enter("main.applies")
	sum := 0
	for i := 0; i < n; i++ {
		sum += f(i)
	}
	s.leave()
	return sum
}

//go:noinline
func closures(s *shadow, base int) int {
	s.enter("main.closures")
	sum := applies(s, func(x int) int {
		s.enter("main.closures.func1")
		x = leaf(s, x+base)
		s.leave()
		return x
	}, 3)
	s.leave()
	return sum
}

//go:noinline
func works(s *shadow) int {
	s.enter("main.works")
	sum := closures(s, 5)
	sum += sums(s, []shape{&square{3}, &disc{2}, &square{4}})
	sum += recovers(s, 2)
	defersInLoop(s, 3)
	sum += grows(s, 20)
	first, second, third := make(chan int), make(chan int), make(chan int)
	go produces(newShadow(), first, 5)
	go passesOn(newShadow(), first, second, 5)
	go doubles(newShadow(), second, third, 5)
	for i := 0; i < 5; i++ {
		sum += receives(s, third)
	}
	one, other := make(chan int), make(chan int)
	go produces(newShadow(), one, 3)
	go produces(newShadow(), other, 3)
	sum += selects(s, one, other, 6)
	for i := 0; i < 5; i++ {
		<-done
	}
	s.leave()
	return sum
}

func main() {
	debug.SetGCPercent(-1)
	sum := works(newShadow())
	file, err := os.Create(os.Getenv("CALLS_LOG"))
	if err != nil {
		panic(err)
	}
	log := bufio.NewWriter(file)
	for _, entry := range entries[:count] {
		fmt.Fprintf(log, "%s,%s,%d,%d,%v\n", entry.function, entry.parent, entry.depth, entry.goroutine, entry.moved)
	}
	log.Flush()
	fmt.Println(sum)
}
