package attach

// receive waits for the next packet that is for the goroutine of the connection.
func (a *conn) receive() (packet []byte, fds []int, err error) {
	if a.buf == nil {
		a.buf = make([]byte, headSize+maxPayload+1)
	}
	if a.looped == nil {
		return receive(a.conn, a.buf)
	}
	for {
		if packet, fds, err = receiveNow(a.looped, a.buf); packet != nil || err != nil {
			return packet, fds, err
		}
		if err := a.looped.Await(a.turn); err != nil {
			return nil, nil, err
		}
		l := a.left
		a.left.packet, a.left.fds, a.left.err, a.left.rest = nil, nil, nil, nil
		if l.rest == nil {
			return l.packet, l.fds, l.err
		}
		l.rest()
	}
}

// turn serves a request in the loop. It returns false, and leaves the packet to the goroutine of the connection, if that might have to wait.
func (a *conn) turn() (again bool) {
	packet, fds, err := receiveNow(a.looped, a.buf)
	if packet == nil && err == nil {
		return true
	}
	if err == nil && fds == nil {
		if h, payload, derr := decode(packet); derr == nil && a.takeNow(&request{header: h, payload: string(payload)}) {
			return a.left.rest == nil
		}
	}
	a.left.packet, a.left.fds, a.left.err = packet, fds, err
	return false
}

// takeNow serves a request in the loop. It returns false, and has done nothing, if that might have to wait.
func (a *conn) takeNow(q *request) bool {
	switch {
	case q.op == opPublish:
		return a.answerNow(q)
	case q.isArrival() && a.takeWait() == nil:
		taken, rest := a.arrive(q, true)
		if !taken {
			a.endWait()
		}
		a.left.rest = rest
		return taken
	}
	return false
}

// trySlot is takeSlot without waiting.
func (a *conn) trySlot() bool {
	select {
	case a.slots <- struct{}{}:
	default:
		return false
	}
	select {
	case a.user.requests <- struct{}{}:
		return true
	default:
		<-a.slots
		return false
	}
}

// answerNow serves a request without another goroutine, and without waiting for anything. It returns false if that cannot be: then
// nothing was done.
func (a *conn) answerNow(q *request) bool {
	if q.op != opPublish || !a.trySlot() {
		return false
	}
	x, err := a.find(q.attachment)
	taken := err == nil && x.area.PublishNow(a.s.cfg.Timeout, func(err error) {
		packet := a.packet(q, reply{arg: [4]uint64{uint64(x.area.Version())}}, err)
		if replyNow(a.conn, packet) {
			a.endSlot()
			return
		}
		go func() { // the program reads no answers, or is gone
			defer a.endSlot()
			a.send(packet, nil)
		}()
	})
	if !taken {
		a.endSlot()
	}
	return taken
}
